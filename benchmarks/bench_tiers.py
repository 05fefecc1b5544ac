"""Weights in tiers: a mixture of experts that is larger than its memory, beside accelerate's offload to disk.

    python benchmarks/bench_tiers.py [--gigabytes 8] [--host-memory 1.5GB] [--rounds 3] [--tokens 4] [--memory]

Writes a release of the asked size (random weights, so that its routing is as good as random: the worst case of a
cache), and deletes it. Both run in processes of their own and take turns; the page cache is dropped before each pass
of both. With --memory the tokens are compared with those of a process that holds all weights.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.tiered import place

HIDDEN, WIDTH, LAYERS, EXPERTS, CHOSEN, VOCABULARY = 1024, 1280, 16, 64, 4, 8192
EXPERT = 3 * HIDDEN * WIDTH * 2
PROMPT = 8
WARM = 26
"""Tokens in which the way of foresight is decided."""


def write_release(folder: Path, nbytes: float) -> None:
    """Of about so many bytes: as many experts in each layer as that takes."""
    from safetensors.torch import save_file
    from transformers import Qwen3MoeConfig

    experts = max(2 * CHOSEN, round(nbytes / LAYERS / EXPERT))
    config = Qwen3MoeConfig(
        hidden_size=HIDDEN, intermediate_size=4 * HIDDEN, moe_intermediate_size=WIDTH, num_hidden_layers=LAYERS,
        num_experts=experts, num_experts_per_tok=CHOSEN, num_attention_heads=8, num_key_value_heads=2, head_dim=128,
        vocab_size=VOCABULARY, dtype="bfloat16", norm_topk_prob=True, architectures=["Qwen3MoeForCausalLM"])
    config.save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    numbers = torch.empty(64 << 20).normal_(0, 0.03, generator=generator).bfloat16()

    def some(*shape: int) -> torch.Tensor:
        count = torch.Size(shape).numel()
        start = int(torch.randint(len(numbers) - count, (), generator=generator))
        return numbers[start:start + count].view(shape).clone()

    index: dict[str, str] = {}
    for layer in range(LAYERS + 1):
        name = f"model-{layer:05d}.safetensors"
        tensors = outer(some) if layer == LAYERS else one_layer(some, layer, experts)
        save_file(tensors, folder / name, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def outer(some: Any) -> dict[str, torch.Tensor]:
    return {"model.embed_tokens.weight": some(VOCABULARY, HIDDEN) * 30, "lm_head.weight": some(VOCABULARY, HIDDEN),
            "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16)}


def one_layer(some: Any, layer: int, experts: int) -> dict[str, torch.Tensor]:
    ones = {name: torch.ones(size, dtype=torch.bfloat16) for name, size in (
        ("input_layernorm", HIDDEN), ("post_attention_layernorm", HIDDEN), ("self_attn.q_norm", 128),
        ("self_attn.k_norm", 128))}
    made = {f"model.layers.{layer}.{name}.weight": value for name, value in ones.items()}
    for name, shape in (("self_attn.q_proj", (1024, HIDDEN)), ("self_attn.k_proj", (256, HIDDEN)),
                        ("self_attn.v_proj", (256, HIDDEN)), ("self_attn.o_proj", (HIDDEN, 1024)),
                        ("mlp.gate", (experts, HIDDEN))):
        made[f"model.layers.{layer}.{name}.weight"] = some(*shape)
    for expert in range(experts):
        for name in ("gate_proj", "up_proj", "down_proj"):
            shape = (HIDDEN, WIDTH) if name == "down_proj" else (WIDTH, HIDDEN)
            made[f"model.layers.{layer}.mlp.experts.{expert}.{name}.weight"] = some(*shape)
    return made


def forget(folder: Path) -> None:
    """Drop what the system keeps of the folder's files."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


class Timed:
    """Seconds of each forward of a model."""

    def __init__(self, model: Any, before: Any) -> None:
        self.seconds: list[float] = []
        self._before = before
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end)

    def _begin(self, *_: Any) -> None:
        self._before()
        self._began = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began)


def in_tiers(folder: Path, memory: int, options: dict[str, Any]) -> tuple[Any, Any]:
    from dayzero.runtime.building import blueprint
    from dayzero.runtime.loading import Checkpoint
    from dayzero.runtime.tiers import Tiers
    from dayzero.schema import Budget

    model = blueprint(folder, "bf16").model
    checkpoint = Checkpoint(folder, model)
    tiers = Tiers(model, checkpoint, {}, Budget(host=memory), from_disk=True, **options)
    place(model, checkpoint.read({name: {} for name in checkpoint.names if name not in tiers.owned}))
    tiers.install()
    return model, tiers


def offloaded(folder: Path, memory: int) -> Any:
    """By accelerate, which may hold as much in memory."""
    from transformers import AutoModelForCausalLM

    room = max(memory - (600 << 20), 200 << 20)  # the process itself, and one layer that is read
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, device_map="auto", max_memory={"cpu": room},
        offload_folder=folder.parent / "offload").eval()


def worker(kind: str, folder: Path, memory: int, options: dict[str, Any]) -> None:
    """Answers each line of standard input: how many tokens to generate."""
    from dayzero.runtime.memory import PeakSampler

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    sampler = PeakSampler(lambda: kind)
    with sampler, torch.no_grad():
        tiers = None
        if kind == "tiers":
            model, tiers = in_tiers(folder, memory, options)
        elif kind == "accelerate":
            model = offloaded(folder, memory)
        else:
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        folders = (folder, folder.parent / "offload") if kind == "accelerate" else ()
        timed = Timed(model, lambda: [forget(each) for each in folders])
        print(json.dumps({"peak": sampler.peak}), flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(model, tiers, timed, int(line)) | {"peak": sampler.peak}), flush=True)


def answer(model: Any, tiers: Any, timed: Timed, count: int) -> dict[str, Any]:
    from transformers import DynamicCache

    torch.manual_seed(count)
    before = 0
    ids, cache, tokens = torch.randint(VOCABULARY, (1, PROMPT)), DynamicCache(), []
    rate = tiers.measure(1.0) if tiers else 0.0
    for step in range(count + 1):
        if tiers and step == 1:
            tiers.reset()
            timed.seconds.clear()
        if step == 1:
            timed.seconds.clear()
            before = from_disk()
        ids = model(input_ids=ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        tokens.append(int(ids))
    made: dict[str, Any] = {"tokens": tokens, "seconds": timed.seconds[:], "disk": (from_disk() - before) / count}
    if tiers:
        record = tiers.statistics()
        made["seconds"] = [record.seconds / record.passes]  # without dropping the page cache
        later = tiers.measure(1.0)
        rate = max(rate, later)  # nothing slower is a bound
        bound = record.fresh_bytes / record.passes / rate
        made |= {"rate": rate, "hit": record.hit, "bound": bound, "accuracy": record.accuracy,
                 "read": record.read_bytes / record.passes, "needed": record.needed_bytes / record.passes,
                 "stall": record.stall_s / record.passes, "late": record.late, "misses": record.misses,
                 "hits": record.hits, "slots": record.slots, "kept": record.kept}
    return made


def from_disk() -> int:
    """Bytes that the system has read from the disk for this process."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


class Process:
    """A worker."""

    def __init__(self, kind: str, folder: Path, memory: int, options: dict[str, Any]) -> None:
        self.kind = kind
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", kind, "--folder", str(folder), "--host-memory", f"{memory / 1e9}GB",
             "--options", json.dumps(options)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.peak = self._line()["peak"]

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.kind} ended")
        made: dict[str, Any] = json.loads(line)
        return made

    def ask(self, count: int) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        made = self._line()
        self.peak = made["peak"]
        return made

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def told(mine: dict[str, Any], seconds: float) -> str:
    """A round in words; figures are for each token."""
    return (f"tiers {1 / seconds:.2f} tokens/s, bound {mine['bound']:.3f} s of {seconds:.3f} s "
            f"({mine['bound'] / seconds:.2f}), hit {mine['hit']:.2f}, {mine['needed'] / 1e6:.0f} MB needed, "
            f"{mine['read'] / 1e6:.0f} MB read ({mine['disk'] / 1e6:.0f} from disk) at {mine['rate'] / 1e9:.2f} GB/s, "
            f"stall {mine['stall']:.3f} s; hits {mine['hits']} late {mine['late']} misses {mine['misses']}, accuracy "
            f"{mine['accuracy'] or 0:.2f}")


def compare(folder: Path, memory: int, arguments: argparse.Namespace) -> None:
    options = json.loads(arguments.options)
    reference = None
    if arguments.memory:
        whole = Process("memory", folder, memory, {})
        reference = [whole.ask(arguments.tokens + turn)["tokens"] for turn in range(arguments.rounds)]
        whole.close()
    tiers = Process("tiers", folder, memory, options)
    other = None if arguments.alone else Process("accelerate", folder, memory, {})
    tiers.ask(WARM)
    ratios, shares = [], []
    for turn in range(arguments.rounds):
        mine = tiers.ask(arguments.tokens + turn)
        seconds = statistics.mean(mine["seconds"])
        shares.append(mine["bound"] / seconds)
        print(f"round {turn}: {told(mine, seconds)}", flush=True)
        if reference:
            print(f"  same tokens as in memory: {mine['tokens'] == reference[turn]}")
        if other:
            theirs = other.ask(min(2, arguments.tokens))
            ratios.append(statistics.mean(theirs["seconds"]) / seconds)
            print(f"  accelerate {1 / statistics.mean(theirs['seconds']):.3f} tokens/s, "
                  f"{theirs['disk'] / 1e6:.0f} MB from disk: {ratios[-1]:.1f} x", flush=True)
    print(f"most private memory: tiers {tiers.peak / 1e6:.0f} MB of {memory / 1e6:.0f} MB")
    if other:
        print(f"most private memory: accelerate {other.peak / 1e6:.0f} MB")
    print(f"kept {mine['kept']}, {mine['slots']} slots")
    print(f"share of the bound: median {statistics.median(shares):.2f} [{min(shares):.2f}, {max(shares):.2f}]")
    if ratios:
        print(f"tokens/s over accelerate's: median {statistics.median(ratios):.1f} "
              f"[{min(ratios):.1f}, {max(ratios):.1f}]")
    tiers.close()
    if other:
        other.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--host-memory", default="1.5GB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--memory", action="store_true", help="compare with all weights in memory")
    parser.add_argument("--alone", action="store_true", help="without accelerate")
    parser.add_argument("--options", default="{}", help="of Tiers, as JSON")
    parser.add_argument("--folder", type=Path, help="a release that is there, or is written there and kept")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    memory = round(float(arguments.host_memory.removesuffix("GB")) * 1e9)
    if arguments.worker:
        worker(arguments.worker, arguments.folder, memory, json.loads(arguments.options))
        return
    work = Path(tempfile.mkdtemp(prefix="tiers-", dir=arguments.folder.parent if arguments.folder else None))
    folder = arguments.folder or work / "release"
    try:
        if not (folder / "config.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_release(folder, arguments.gigabytes * 1e9)
        compare(folder, memory, arguments)
    finally:
        shutil.rmtree(work)
        shutil.rmtree(folder.parent / "offload", ignore_errors=True)


if __name__ == "__main__":
    main()
