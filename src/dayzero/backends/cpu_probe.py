"""One process of the host probe: times what a rank of a local run does, at the same moments as its peers.

Started by `cpu` as `python -m dayzero.backends.cpu_process PARENT FOLDER RANK RANKS THREADS`; writes FOLDER/RANK.json.
All quantities are timed in turn, round after round, so that a busy second of the machine touches one round of each.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import log2
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList

from dayzero.schema import to_json
from dayzero.schema.store import write_atomic

from . import host
from .cpu import Sample
from .rates import matrix_rate, median_call, memory_bandwidth

_ROUNDS = 7
_SLICES = {"bandwidth": 0.16, "overhead": 0.22, "matrix": 0.07}  # seconds of each measurement in a round
_SMALL_CALLS, _LARGE_CALLS = 30, 2
_SMALL, _LARGE = 1 << 12, 1 << 24
_MODEL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 24, "num_attention_heads": 8,
          "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 256, "eos_token_id": None}  # fmt: skip
"""Of usual depth and with heads of usual width, so that what a step costs is spread over as many operators as in a real
model; narrow, so that weights cost little, but with no matrix so small (up to 4096 products) that torch computes it in
another way."""
_CONTEXT, _STEPS = 64, 16


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operator calls as a trace does: composite ones by what they consist of, except fused attention."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.scaled_dot_product_attention.default:
            with self:
                result = func.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        self.calls += 1
        return func(*args, **(kwargs or {}))


class _Stamps(LogitsProcessor):  # type: ignore[misc]
    """Changes nothing; notes when each step of a generation has its logits."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return scores


def _decode_steps(model: Any, prompt: torch.Tensor) -> list[float]:
    """Seconds of each decode step of a generation, the library's loop included."""
    stamps = _Stamps()
    model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=_STEPS + 1, do_sample=False,
                   pad_token_id=0, logits_processor=LogitsProcessorList([stamps]))
    return [after - before for before, after in pairwise(stamps.times)]


def _op_overhead(model: Any) -> Callable[[float], float]:
    """Seconds an operator costs whatever its size, framework included: a small model's decode step / its operators."""
    prompt = torch.ones(1, _CONTEXT, dtype=torch.long)
    cache = model(prompt, use_cache=True).cache
    with _Counter() as counter:  # type: ignore[no-untyped-call]
        model(prompt[:, :1], cache=cache, use_cache=True)

    def measure(seconds: float) -> float:
        steps: list[float] = []
        end = time.perf_counter() + seconds
        while not steps or time.perf_counter() < end:
            steps += _decode_steps(model, prompt)
        return float(median(steps) / counter.calls)

    return measure


def _round_trip(tensor: torch.Tensor) -> None:
    """Once through all ranks, each sending on what it received."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        dist.send(tensor, 1)
    dist.recv(tensor, (rank - 1) % ranks)
    if rank > 0:
        dist.send(tensor, (rank + 1) % ranks)


def _links() -> dict[str, float]:
    """For each kind: seconds of one message of a small transfer, and bytes a second of a large one.

    An all-reduce over n ranks counts as 2 log2(n) messages after each other, and as 2 (n - 1) / n of the tensor sent.
    """
    ranks = dist.get_world_size()
    depth = log2(ranks)
    kinds = {"all_reduce": (dist.all_reduce, 2 * depth, 2 * (ranks - 1) / ranks), "send": (_round_trip, ranks, ranks),
             "broadcast": (lambda tensor: dist.broadcast(tensor, 0), depth, 1)}  # fmt: skip
    figures = {}
    for name, (call, messages, tensors) in kinds.items():
        small, large = torch.zeros(_SMALL, dtype=torch.uint8), torch.zeros(_LARGE, dtype=torch.uint8)
        dist.barrier()
        figures[f"{name}.latency"] = median_call(partial(call, small), _SMALL_CALLS) / messages
        figures[f"{name}.bandwidth"] = _LARGE * tensors / median_call(partial(call, large), _LARGE_CALLS)
    return figures


def main(folder: Path, rank: int, ranks: int, threads: int) -> None:
    """Measure and write."""
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    with torch.inference_mode():
        config = AutoConfig.for_model("llama", **_MODEL)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        overhead = _op_overhead(model)
        overhead(0)
        links = _links if ranks > 1 else dict
        dist.all_reduce(torch.zeros(_SMALL, dtype=torch.uint8))
        process_bytes = host.private_memory() - sum(each.nbytes for each in model.parameters())
        here = torch.device("cpu")
        parts = [("memory_bandwidth", memory_bandwidth(here), "bandwidth"), ("op_overhead", overhead, "overhead"),
                 ("flops.bf16", matrix_rate(here, torch.bfloat16), "matrix"),
                 ("flops.f32", matrix_rate(here, torch.float32), "matrix")]
        rounds = defaultdict(list)
        for _ in range(_ROUNDS):
            for name, measure, kind in parts:
                dist.barrier()
                rounds[name].append(measure(_SLICES[kind]))
            for name, value in links().items():
                rounds[name].append(value)
    write_atomic(folder / f"{rank}.json", to_json(Sample(rounds=rounds, process_bytes=process_bytes)))
    dist.barrier()
    dist.destroy_process_group()
