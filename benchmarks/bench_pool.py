"""Memory pool and timeline: what each allocator needs for recorded traces, what a call and a span cost, and how much of
loading is hidden under computing.

    python benchmarks/bench_pool.py [--record]

The traces in benchmarks/traces were recorded on the host with torch's profiler; --record makes them anew, from
miniatures of the card below (a minute; sizes stay, addresses do not matter):
  serve   prefill and decode of several prompts, one after the other, with a cache that grows by concatenation
  train   three training steps of different lengths
  blocks  not recorded but drawn: 16-token cache blocks of 300 requests, 32 at a time
Rows named "model" follow the rules of torch's caching allocator (dayzero.runtime.replay.caching); where an accelerator
is, torch's own is in the table too. A call of a pool is timed beside malloc through torch.empty, in interleaved rounds.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from dayzero.runtime.pool import DEFAULT, Allocator, Arena, BestFit, Buddy, Slab
from dayzero.runtime.replay import Replay, Trace, read_trace, record, replay, trace_of, write_trace
from dayzero.runtime.timeline import OFF, Background, Timeline
from dayzero.units import format_bytes, format_seconds

ROOT = Path(__file__).parent
TRACES = ROOT / "traces"
CARD = ROOT.parent / "examples" / "cards" / "qwen3-235b-a22b.toml"
PROMPTS = ((500, 12), (60, 30), (1000, 10), (230, 16))  # tokens, new tokens
STEPS = (512, 300, 640)
ROUNDS = 9
LAYERS = 16


def twin() -> Any:
    """A small mixture-of-experts model with random weights and the library's own code."""
    import torch
    from transformers import AutoModelForCausalLM

    from dayzero.stages.read import read
    from dayzero.stages.twin import twin as make_twin

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "twin"
        make_twin(read(CARD), made, layers=3, scale=4.0)
        return AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)


def record_traces() -> None:
    """Write the shipped traces anew."""
    import torch

    torch.manual_seed(0)
    model = twin()

    def tokens(count: int) -> Any:
        return torch.randint(0, 250, (1, count))

    def serve() -> None:
        for prompt, new in PROMPTS:
            model.generate(tokens(prompt), max_new_tokens=new, min_new_tokens=new, do_sample=False)

    def train() -> None:
        optimizer = torch.optim.AdamW(model.parameters())
        for count in STEPS:
            model(tokens(count), labels=tokens(count)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    TRACES.mkdir(exist_ok=True)
    write_trace(record("serve", serve), TRACES / "serve.json")
    write_trace(record("train", train), TRACES / "train.json")
    write_trace(blocks(), TRACES / "blocks.json")


def blocks(requests: int = 300, together: int = 32, nbytes: int = 2 * 4 * 128 * 2 * 16) -> Trace:
    """Cache blocks of 16 tokens (keys and values, 4 heads of 128, bf16) of requests of random lengths; addresses are
    names. Every step each request in flight gets a token; one that ends frees its blocks, and another begins."""
    draw = random.Random(0)
    changes: list[tuple[int, int, int]] = []
    flying: list[tuple[int, int, list[int]]] = []  # tokens now, tokens at the end, addresses
    begun = 0
    while flying or begun < requests:
        while len(flying) < together and begun < requests:
            prompt = draw.randrange(16, 600)
            flying.append((prompt, prompt + draw.randrange(8, 200), []))
            begun += 1
        still = []
        for now, end, held in flying:
            while len(held) * 16 < now:
                held.append(len(changes) + 1)
                changes.append((held[-1], nbytes, 0))
            if now < end:
                still.append((now + 1, end, held))
            else:
                changes += [(address, -nbytes, 0) for address in held]
        flying = still
    return trace_of("blocks", changes)


def show(found: Replay) -> None:
    """One row for each allocator."""
    print(f"{found.trace}: {found.allocations} allocations, at most {format_bytes(found.peak)} in use")
    calls = found.allocations + found.frees
    for one in found.results:
        needs = format_bytes(one.needs) if one.needs else "not measured"
        print(f"  {one.allocator:17} {one.kind:7} needs {needs:>9} ({one.fragmentation:6.1%} not in use at the peak)"
              f"  reserves {format_bytes(one.reserved):>9}  gives back {one.releases:2}"
              + (f"  rounding {one.rounding:5.1%}" if one.rounding >= 0 else "")
              + (f"  a call {format_seconds(one.seconds / calls)}" if one.seconds else ""))


def rounds(kinds: dict[str, Callable[[], object]], count: int) -> None:
    """Median and spread of a call of each, in rounds that take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, call in kinds.items():
            begin = time.perf_counter()
            for _ in range(count):
                call()
            seconds[name].append((time.perf_counter() - begin) / count)
    for name, each in seconds.items():
        print(f"  {name:24} {format_seconds(median(each))} (from {format_seconds(min(each))} to "
              f"{format_seconds(max(each))})")


def time_calls() -> None:
    """A block taken and given back from a pool that is half full, and the same memory from torch."""
    import torch

    def filled(pool: Allocator) -> Callable[[], None]:
        held = [pool.take(1024) for _ in range(20_000)]
        for block in held[::2]:
            pool.give(block)
        return lambda: pool.give(pool.take(1024))

    print("take and give 1 KiB, 10000 blocks live:")
    size = 40_000 * 1024
    rounds({"slab": filled(Slab(size, 1024)), "best fit": filled(BestFit(size)), "buddy": filled(Buddy(size)),
            "torch.empty on the host": lambda: torch.empty(1024, dtype=torch.uint8)}, 5_000)


def time_spans() -> None:
    """A span, with and without a file."""
    def one(timeline: Timeline) -> Callable[[], None]:
        def span() -> None:
            with timeline.span("load", "layer", nbytes=1, layer=1):
                pass
        return span

    print("a span:")
    with tempfile.TemporaryDirectory() as folder, Timeline(Path(folder) / "t.json") as written, Timeline() as kept:
        rounds({"written to a file": one(written), "kept in memory": one(kept), "of no timeline": one(OFF)}, 20_000)


def hidden() -> None:
    """Layers that are read from a file while the one before is computed, and the same one after the other."""
    import torch

    torch.set_num_threads(1)
    nbytes = 32 * 2**20
    arena, pool = Arena(2 * nbytes), Slab(2 * nbytes, nbytes)
    buffers = [arena.tensor(pool.take(nbytes), (2048, 4096), torch.float32) for _ in range(2)]
    hidden_states = torch.randn(96, 4096)
    with tempfile.NamedTemporaryFile() as file:
        file.write(torch.randn(LAYERS * nbytes // 4).numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())

        def read(layer: int) -> None:
            os.preadv(file.fileno(), [memoryview(buffers[layer % 2].numpy()).cast("B")], layer * nbytes)

        def run(timeline: Timeline, loads: Background, ahead: bool) -> None:
            coming = [loads.submit(read, 0, nbytes=nbytes)]
            for layer in range(LAYERS):
                with timeline.span("wait"):
                    coming[-1].result()
                if ahead and layer + 1 < LAYERS:
                    coming.append(loads.submit(read, layer + 1, nbytes=nbytes))
                with timeline.span("compute", layer=layer):
                    hidden_states @ buffers[layer % 2].T
                if not ahead and layer + 1 < LAYERS:
                    coming.append(loads.submit(read, layer + 1, nbytes=nbytes))

        seconds: dict[bool, list[float]] = {True: [], False: []}
        shares: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(ROUNDS):
            for ahead in (True, False):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                with Timeline() as timeline, Background("loads", timeline=timeline) as loads:
                    begin = time.perf_counter()
                    run(timeline, loads, ahead)
                    seconds[ahead].append(time.perf_counter() - begin)
                    shares[ahead].append(timeline.overlap()[0].share)
    print(f"{LAYERS} layers of {format_bytes(nbytes)} read from disk and computed by one thread:")
    for ahead, name in ((False, "one after the other"), (True, "the next one meanwhile")):
        print(f"  {name:24} {format_seconds(median(seconds[ahead]))} (from {format_seconds(min(seconds[ahead]))} to "
              f"{format_seconds(max(seconds[ahead]))}), {median(shares[ahead]):.0%} of loading hidden")


def main() -> None:
    """All tables; exit status 1 where another of our allocators needs less than the default."""
    if "--record" in sys.argv[1:]:
        record_traces()
    beaten = False
    for path in sorted(TRACES.glob("*.json")):
        found = replay(read_trace(path))
        show(found)
        needs = {one.allocator: one.needs for one in found.results if one.kind == "pool"}
        beaten |= min(needs.values()) < 0.99 * needs["best fit"]
    print(f"the default is {DEFAULT.__name__}: " + ("another one needs less" if beaten else "none of ours needs less"))
    time_calls()
    time_spans()
    hidden()
    sys.exit(beaten)


if __name__ == "__main__":
    main()
