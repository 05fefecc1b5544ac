"""What recording a golden dump costs: the same forward pass plain, recorded whole, sampled, and as statistics.

    python benchmarks/bench_record.py [RELEASE] [--tokens 512] [--rounds 7] [--dtype float32] [--threads N]

Every round runs all of them one after the other, so that a busy machine is busy for all; what is printed is the ratio
to the plain run of the same round: median, and the quartiles around it. `ran` is the time until the model had answered,
`ended` until the dump is complete on the disk; `thread` and `process` are processor seconds of the thread that runs the
model and of all threads, which tell more where others use the machine.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from dayzero.runtime.golden import open_dump
from dayzero.runtime.recording import record

ROOT = Path(__file__).parent.parent
GOALS = {"whole": 1.5, "statistics": 1.1}
"""Largest ratios that were promised."""
MEASURES = ("ran", "ended", "thread", "process")


def main() -> None:
    """Measure and print."""
    asked = _arguments()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    model = AutoModelForCausalLM.from_pretrained(asked.release, dtype=getattr(torch, asked.dtype)).eval()
    ids = torch.randint(0, model.config.vocab_size, (1, asked.tokens), generator=torch.Generator().manual_seed(0))
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in ("plain", "whole", "sampled", "statistics")}
    sizes: dict[str, int] = {}
    if asked.folder:
        asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=asked.folder) as scratch, torch.no_grad():
        model(ids)
        for _ in range(asked.rounds):
            for name, measured in times.items():
                folder = Path(scratch) / name
                measured.append(_timed(lambda: model(ids), None if name == "plain" else (model, folder, name)))
                if name != "plain":
                    with open_dump(folder) as dump:
                        sizes[name] = sum(path.stat().st_size for path in dump.folder.iterdir())
                    shutil.rmtree(folder)
    _print(asked, times, sizes)


def _timed(run: Callable[[], Any], recorded: tuple[Any, Path, str] | None) -> tuple[float, ...]:
    """Seconds: as MEASURES. What a recording of many passes does once, at its beginning, is not of one."""
    with nullcontext() if recorded is None else record(recorded[0], recorded[1], mode=recorded[2]):
        wall, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
        run()
        ran, held = time.perf_counter() - wall, time.thread_time() - thread
    return ran, time.perf_counter() - wall, held, time.process_time() - process


def _print(asked: argparse.Namespace, times: dict[str, list[tuple[float, ...]]], sizes: dict[str, int]) -> None:
    every = times.pop("plain")
    plain = [each[0] for each in every]
    print(f"{asked.release.name}, {asked.tokens} tokens, {asked.dtype}, {torch.get_num_threads()} threads, "
          f"{asked.rounds} rounds: plain {statistics.median(plain):.3f} s "
          f"({min(plain):.3f} to {max(plain):.3f})")
    for name, measured in times.items():
        parts = []
        for index, word in enumerate(MEASURES):
            ratios = sorted(each[index] / base[index] for each, base in zip(measured, every, strict=True))
            low, middle, high = statistics.quantiles(ratios, n=4)
            parts.append(f"{word} {middle:.2f} x ({low:.2f} to {high:.2f})")
        goal = f", goal {GOALS[name]} x" if name in GOALS else ""
        print(f"  {name:10} {', '.join(parts)}, {sizes[name] / 1e6:,.1f} MB{goal}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path, nargs="?", default=ROOT / "demo" / "SmolLM2-135M")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, help="of the model; 1 where others use the machine too")
    parser.add_argument("--folder", type=Path, help="where dumps go meanwhile; default: the temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    main()
