"""How fast a rank's share is loaded, beside plain reads of the same bytes, and the private memory that it takes:
`bench_loading.py [ROUNDS] [GB] [DIR]`.

A mixture of experts with random weights is written to DIR (default: the system's temporary folder). Each share is read
by as many threads as cores: by the loader, by plain reads of the very byte ranges that it needs (`ranges`), and by
plain reads of as many bytes in a row (`in a row`), all into memory that is new. They take turns; cold means that the
system was told to drop its cache of the files, which a virtual machine's host may keep. The ratio to `ranges` should be
0.8 or more. Memory is that of a rank of each layout in a process of its own, above what the imported libraries take; it
should be at most 1.15 times the share and 100 MB. With 0 ROUNDS only memory is measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch

from dayzero.runtime.building import blueprint
from dayzero.runtime.loading import Checkpoint, Cut
from dayzero.runtime.loading.reading import Direct, Placed, ordered
from dayzero.runtime.memory import PeakSampler, release_unused
from dayzero.runtime.rank import Rank
from dayzero.runtime.sharding import derive
from dayzero.schema import Layout

THREADS = len(os.sched_getaffinity(0))
REQUEST = 16 << 20
HIDDEN, WIDTH, EXPERTS, HEADS = 1024, 768, 32, 16
Range = tuple[int, int, int]
FSDP = ",fsdp"
LAYOUTS = ("tp=1", "tp=2", "tp=4", "pp=2", "pp=3", "dp=2,fsdp", "tp=2,ep=2", "dp=2,ep=2", "tp=4,ep=2", "tp=2,dp=2,ep=4",
           "tp=2,pp=2", "dp=2,ep=2,pp=2", "tp=2,ep=2,pp=2")


def config(gigabytes: float) -> object:
    """Of a model of about that size in bf16."""
    from transformers import AutoConfig

    layers = max(2, round(gigabytes * 1e9 / 2 / (EXPERTS * 3 * HIDDEN * WIDTH)))
    return AutoConfig.for_model(
        "qwen3_moe", hidden_size=HIDDEN, moe_intermediate_size=WIDTH, num_experts=EXPERTS, num_hidden_layers=layers,
        num_attention_heads=HEADS, num_key_value_heads=4, head_dim=64, vocab_size=32000, num_experts_per_tok=4)


def empty(root: Path) -> torch.nn.Module:
    """The model without data."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(root), dtype=torch.bfloat16)


def write(root: Path, gigabytes: float) -> None:
    """The release, with its experts one by one, as they are published."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    AutoModelForCausalLM.from_config(config(gigabytes), dtype=torch.bfloat16).save_pretrained(
        root, max_shard_size="400MB")


def shares(names: dict[str, tuple[int, ...]]) -> dict[str, dict[str, Cut]]:
    """What the first of two ranks keeps."""
    half = max(int(name.split(".")[2]) for name in names if ".layers." in name) // 2
    return {
        "whole": {name: {} for name in names},
        "pp2": {name: {} for name in names if ".layers." not in name or int(name.split(".")[2]) <= half},
        "ep2": {name: {0: ((0, shape[0] // 2),)} if ".experts." in name else {} for name, shape in names.items()},
        "tp2": {name: by_width(name, shape) for name, shape in names.items()},
    }


def by_width(name: str, shape: tuple[int, ...]) -> Cut:
    """Tensor parallelism: columns of what goes in, rows of what comes out."""
    if "gate_up_proj" in name:
        return {1: ((0, shape[1] // 4), (shape[1] // 2, shape[1] * 3 // 4))}
    axis = {"down_proj": 2, "o_proj": 1, "q_proj": 0, "k_proj": 0, "v_proj": 0, "embed_tokens": 0, "lm_head": 0}.get(
        next((part for part in reversed(name.split(".")) if part != "weight"), ""))
    return {} if axis is None else {axis: ((0, shape[axis] // 2),)}


def needed(checkpoint: Checkpoint, share: dict[str, Cut]) -> list[Range]:
    """Byte ranges (file, first, bytes) of a share, as long as they can be."""
    found: list[Range] = []
    for name, ranges in share.items():
        out = torch.empty(checkpoint.shape(name, ranges), dtype=torch.bfloat16)
        for task in ordered(checkpoint._tasks(name, ranges, out)):
            found += [(*task.place, task.length)] if isinstance(task, Direct) else list(rows(task))
    merged: list[Range] = []
    for file, start, length in sorted(found):
        if merged and merged[-1][0] == file and sum(merged[-1][1:]) == start:
            merged[-1] = (file, merged[-1][1], merged[-1][2] + length)
        else:
            merged.append((file, start, length))
    return merged


def rows(task: object) -> Iterator[Range]:
    """Byte ranges of a piece of a matrix."""
    assert isinstance(task, Placed)
    size, strides = task.piece.size, task.piece.strides
    assert strides[-1] == 1 and max(size[:-2], default=1) == 1
    file, start = task.place
    for row in range(size[-2]):
        yield file, start + row * strides[-2] * 2, size[-1] * 2


def plain(root: Path, files: tuple[str, ...], ranges: list[Range]) -> float:
    """Seconds of plain reads."""
    start = time.perf_counter()
    opened = [os.open(root / name, os.O_RDONLY) for name in files]
    memory = memoryview(torch.empty(sum(each[2] for each in ranges), dtype=torch.uint8).numpy())
    parts, at = [], 0
    for file, begin, length in ranges:
        for done in range(0, length, REQUEST):
            count = min(REQUEST, length - done)
            parts.append((opened[file], begin + done, memory[at:at + count]))
            at += count
    left, lock = iter(parts), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                part = next(left, None)
            if part is None:
                return
            assert os.preadv(part[0], [part[2]], part[1]) == len(part[2])

    workers = [threading.Thread(target=work) for _ in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for descriptor in opened:
        os.close(descriptor)
    return time.perf_counter() - start


def in_a_row(root: Path, files: tuple[str, ...], count: int) -> list[Range]:
    """As many bytes from the start of the files on."""
    made: list[Range] = []
    for number, name in enumerate(files):
        length = min(count, (root / name).stat().st_size)
        made.append((number, 0, length))
        count -= length
    return [each for each in made if each[2]]


def drop(root: Path, files: tuple[str, ...]) -> None:
    """Out of the page cache."""
    for name in files:
        with (root / name).open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(root: Path, share: dict[str, Cut], model: torch.nn.Module) -> float:
    """Seconds of the loader, with reading the headers. Giving the memory back is not counted."""
    start = time.perf_counter()
    with Checkpoint(root, model) as checkpoint:
        tensors = checkpoint.read(share, threads=THREADS)
    seconds = time.perf_counter() - start
    del tensors
    return seconds


def speed(root: Path, rounds: int) -> None:
    """Print the rates of every share, warm and cold, and the ratios."""
    model = empty(root)
    checkpoint = Checkpoint(root, model)
    files = checkpoint.files.names
    names = {name: checkpoint.shape(name) for name in checkpoint.names}
    for label, share in shares(names).items():
        ranges = needed(checkpoint, share)
        count = sum(each[2] for each in ranges)
        ways: dict[str, Callable[[], float]] = {
            "loader": lambda share=share: timed(root, share, model),
            "ranges": lambda ranges=ranges: plain(root, files, ranges),
            "in a row": lambda count=count: plain(root, files, in_a_row(root, files, count))}
        for state in ("warm", "cold"):
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(rounds + 1):
                for way in (list(ways) if number % 2 else list(reversed(ways))):
                    if state == "cold":
                        drop(root, files)
                    took = ways[way]()
                    if number:
                        seconds[way].append(took)
            rates = "  ".join(f"{way} {count / 1e9 / median(took):5.2f} GB/s" for way, took in seconds.items())
            ratio = {way: sorted(a / b for a, b in zip(took, seconds["loader"], strict=True))
                     for way, took in seconds.items()}
            told = "  ".join(f"/ {way} {median(ratio[way]):.2f} [{ratio[way][0]:.2f}-{ratio[way][-1]:.2f}]"
                             for way in ("ranges", "in a row"))
            print(f"{label:6} {state} {count / 1e9:5.2f} GB  {rates}  loader {told}", flush=True)


def memory(root: Path, text: str, number: int) -> None:
    """Print what a rank of a layout takes while it prepares, as JSON; in a process of its own."""
    layout = Layout.parse(text.removesuffix(FSDP))
    derive(blueprint(root, "bf16").model, layout)  # what the library imports for it is no memory of the load
    rank = Rank(root, "bf16", threads=THREADS)
    release_unused()
    with PeakSampler(lambda: text) as sampler:
        held = rank.prepare(layout, number, fsdp=text.endswith(FSDP))
    print(json.dumps({"share": held.weight_bytes, "peak": sampler.peak - sampler.base}))


def shares_of_ranks(root: Path) -> None:
    """Print the memory of the first and the last rank of every layout."""
    for text in LAYOUTS:
        for number in sorted({0, Layout.parse(text.removesuffix(FSDP)).world_size - 1}):
            done = subprocess.run([sys.executable, __file__, "memory", str(root), text, str(number)],
                                  capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            limit = 1.15 * found["share"] + 100e6
            print(f"{text:14} rank {number}: share {found['share'] / 1e6:5.0f} MB, private memory at most "
                  f"{found['peak'] / 1e6:5.0f} MB (limit {limit / 1e6:.0f}"
                  f"{'' if found['peak'] <= limit else ', exceeded'})", flush=True)


def main(rounds: int, gigabytes: float, place: str | None) -> None:
    """Everything."""
    with tempfile.TemporaryDirectory(dir=place) as at:
        root = Path(at)
        write(root, gigabytes)
        shares_of_ranks(root)
        print(f"{THREADS} threads")
        if rounds:
            speed(root, rounds)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["memory"]:
        memory(Path(arguments[1]), arguments[2], int(arguments[3]))
    else:
        main(int(arguments[0]) if arguments else 7, float(arguments[1]) if len(arguments) > 1 else 1.2,
             arguments[2] if len(arguments) > 2 else None)
