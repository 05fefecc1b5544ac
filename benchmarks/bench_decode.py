"""Decode speed of one process on a real model: the engine over pages, the same engine over the library's own cache, and
the library's generate; one sequence and sixteen. All in the same rounds, one after the other; medians and spread.

The engine runs as `dayzero run` does: with the backend's products (oneDNN for f32 on the host). `library's products` is
the same engine without them. generate has the library's model as it is.

    python benchmarks/bench_decode.py demo/SmolLM2-135M [--rounds 5] [--new 64] [--prompt 64] [--dtype float32]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from dayzero.backends import backends
from dayzero.runtime.pages import Pages, cut, layer_kinds
from dayzero.runtime.serving import Engine, Request, Worker, model_forward

MANY = 16


class Plain(Pages):
    """The library's own cache below the same engine: rows of a batch must stay the same and be equally long."""

    def __init__(self, config: Any, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._config = config
        self._row = 0

    def calling(self, rows: Sequence[Any]) -> Any:
        """A new cache where sequences begin."""
        if rows[0].start == 0:
            self.cache = DynamicCache(config=self._config)
        return super().calling(rows)


def engine(model: Any, kinds: Any, tokens: int, *, plain: bool = False) -> Engine:
    """An engine with room for all sequences."""
    forward = model_forward(model)
    pages = Pages(kinds)
    parts = pages.measure(lambda call, cache: forward(call.input_ids, call.position_ids, call.mask, cache))
    room = cut(parts, 2**40, block_tokens=16, lengths=[tokens] * MANY, sequences=MANY)
    if plain:
        pages = Plain(model.config, kinds)
    pages.allocate(room)
    return Engine(Worker(forward, pages).run, pages.groups, [room], share=False, budget=MANY * tokens,
                  uniform=pages.uniform)


def served(one: Engine, prompts: Sequence[tuple[int, ...]], new: int) -> list[list[int]]:
    """All prompts at once."""
    streams = [one.submit(Request(prompt, new)) for prompt in prompts]
    one.work()
    return [stream.result() for stream in streams]


def generated(model: Any, prompts: Sequence[tuple[int, ...]], new: int) -> list[list[int]]:
    """The library, all prompts as one padded batch."""
    length = max(map(len, prompts))
    ids = torch.tensor([(0,) * (length - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.inference_mode():
        found = model.generate(ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=None, do_sample=False,
                               eos_token_id=None, pad_token_id=0)
    return [row.tolist() for row in found[:, length:]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    for name, value in (("rounds", 5), ("new", 64), ("prompt", 64), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--ways", default="", help="only those whose name begins so, such as one:")
    parser.add_argument("--cpu", action="store_true", help="processor seconds in the place of time, for a busy machine")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    library, model = (AutoModelForCausalLM.from_pretrained(given.model, dtype=getattr(torch, given.dtype)).eval()
                      for _ in range(2))
    library.generation_config.eos_token_id = None
    kinds = layer_kinds(model.config)
    numbers = torch.Generator().manual_seed(0)
    prompts = [tuple(torch.randint(3, model.config.vocab_size, (given.prompt,), generator=numbers).tolist())
               for _ in range(MANY)]
    different = [prompt[: len(prompt) * (row + 4) // (MANY + 4)] for row, prompt in enumerate(prompts)]
    room, new = given.prompt + given.new, given.new
    own = ExitStack()
    own.enter_context(backends().get("cpu").optimizations(model, linear="onednn"))
    paged, unpaged = engine(model, kinds, room), engine(model, kinds, room, plain=True)
    slower = engine(library, kinds, room)
    ways: dict[str, tuple[int, Callable[[], Any]]] = {
        "one: engine, pages": (1, lambda: served(paged, prompts[:1], new)),
        "one: engine, library's products": (1, lambda: served(slower, prompts[:1], new)),
        "one: engine, library's cache": (1, lambda: served(unpaged, prompts[:1], new)),
        "one: generate": (1, lambda: generated(library, prompts[:1], new)),
        "16 equally long: engine, pages": (MANY, lambda: served(paged, prompts, new)),
        "16 equally long: engine, library's cache": (MANY, lambda: served(unpaged, prompts, new)),
        "16 equally long: generate, one batch": (MANY, lambda: generated(library, prompts, new)),
        "16 of different lengths: engine, pages": (MANY, lambda: served(paged, different, new)),
        "16 of different lengths: generate, one batch": (MANY, lambda: generated(library, different, new)),
        "16 of different lengths: generate, one by one": (
            MANY, lambda: [generated(library, [prompt], new)[0] for prompt in different]),
    }
    ways = {name: way for name, way in ways.items() if name.startswith(given.ways)}
    clock = time.process_time if given.cpu else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    results: dict[str, Any] = {}
    for number in range(given.rounds + 1):
        for name, (_, run) in ways.items():
            begun = clock()
            results[name] = run()
            if number:
                seconds[name].append(clock() - begun)
    for name, (count, _) in ways.items():
        rates = sorted(count * new / each for each in seconds[name])
        print(f"{name:46} {statistics.median(rates):8.1f} tokens/s  [{rates[0]:.1f} - {rates[-1]:.1f}]")
    _ratios(seconds)
    for first, second in (("one: engine, pages", "one: generate"),
                          ("16 of different lengths: engine, pages", "16 of different lengths: generate, one by one")):
        if first in results:
            print(f"tokens of {first!r} and of {second!r} equal: {results[first] == results[second]}")
    own.close()


def _ratios(seconds: dict[str, list[float]]) -> None:
    pairs = {"one: generate / pages": ("one: generate", "one: engine, pages"),
             "one: generate / library's products": ("one: generate", "one: engine, library's products"),
             "one: library's cache / pages": ("one: engine, library's cache", "one: engine, pages"),
             "16 equally long: library's cache / pages": ("16 equally long: engine, library's cache",
                                                          "16 equally long: engine, pages"),
             "16 equally long: generate's batch / pages": ("16 equally long: generate, one batch",
                                                           "16 equally long: engine, pages"),
             "16 different: one by one / pages": ("16 of different lengths: generate, one by one",
                                                  "16 of different lengths: engine, pages"),
             "16 different: generate's batch / pages": ("16 of different lengths: generate, one batch",
                                                        "16 of different lengths: engine, pages")}
    for name, (peer, own) in pairs.items():
        if peer not in seconds or own not in seconds:
            continue
        ratios = sorted(a / b for a, b in zip(seconds[peer], seconds[own], strict=True))
        print(f"time of {name:42} {statistics.median(ratios):5.2f}  [{ratios[0]:.2f} - {ratios[-1]:.2f}]")


if __name__ == "__main__":
    main()
