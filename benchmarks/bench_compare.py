"""Comparing two large golden dumps: speed against a plain read of the same files, and memory.

Both dumps are written once; then, in each round, all their files are read from a cold page cache and thrown away, and
compared from a cold page cache, in a process of its own each. What differs is what two bf16 runs differ by.

    python benchmarks/bench_compare.py [--gigabytes 4] [--rounds 3] [--folder DIR] [--equal]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

WIDTH, ROWS, CALL = 4096, 8192, 16 * 2**20
VOCABULARY = 128_256


def write(folder: Path, size: int, noise: float, seed: int) -> None:
    """A dump of about so many bytes: layers of six outputs, [rows, width] each in bf16, and logits of some rows."""
    from dayzero.runtime.golden import Writer
    from dayzero.schema import Column, Layout
    from dayzero.schema.golden import Entry, Origin, Pass, RankDump, Rows, Statistics

    origin = Origin(release="bench", digests={}, engine="numpy", libraries={}, dtype="BF16", device="cpu")
    writer = Writer(folder, RankDump(finished=False, origin=origin, layout=Layout(), rank=0, seed=0, mode="whole",
                                     place=dict.fromkeys(("tp", "pp", "ep", "dp", "cp"), 0)))
    rows = (Rows(sequence=0, first=0, count=ROWS),)
    writer.begin(Pass(number=0, phase="prefill", shape=(1, ROWS), rows=rows, tokens=Column(np.arange(ROWS))))
    rng = np.random.default_rng(seed)
    base = np.random.default_rng(0).standard_normal((ROWS, WIDTH), dtype=np.float32)
    told = Statistics(count=base.size, nan=0, inf=0, minimum=-5, maximum=5, mean=0, rms=1, max_abs=5)
    logits = ROWS // 64
    count = max(1, (size - logits * VOCABULARY * 2) // (ROWS * WIDTH * 2))
    names = ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj", "mlp", "input_layernorm")
    for number in range(count):
        values = base * np.float32(1 + number % 7)
        if noise:
            rows_off = noise * rng.standard_normal((ROWS, 1), dtype=np.float32)
            values = values * (1 + rows_off) + noise * np.roll(base, number)
        entry = Entry(name=f"model.layers.{number // len(names)}.{names[number % len(names)]}", module="Bench",
                      kind="linear", what="output", slot="0", pass_no=0, call=0, order=number, statistics=told,
                      axes=("token", "channel"), shape=values.shape, dtype="BF16")
        writer.add(entry, _bf16(values))
    last = np.random.default_rng(1).standard_normal((logits, VOCABULARY), dtype=np.float32)
    last += noise * rng.standard_normal(last.shape, dtype=np.float32)
    told = msgspec.structs.replace(told, count=last.size)
    writer.add(Entry(name="", module="Bench", kind="model", what="logits", slot="logits", pass_no=0, call=0,
                     order=count, statistics=told, axes=("token", "channel"), shape=last.shape, dtype="BF16",
                     rows=(Rows(sequence=0, first=0, count=logits),)), _bf16(last))
    writer.finish()


def _bf16(values: np.ndarray) -> bytes:
    return (np.ascontiguousarray(values, np.float32).view("<u4") >> 16).astype("<u2").tobytes()


def cold(folders: list[Path]) -> None:
    """Take the files out of the page cache."""
    for path in (each for folder in folders for each in folder.iterdir()):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def read(folders: list[Path]) -> float:
    """Seconds to read all files once, with as many threads as comparing has."""
    from concurrent.futures import ThreadPoolExecutor

    def one(path: Path) -> None:
        buffer = bytearray(CALL)
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    begun = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, [each for folder in folders for each in sorted(folder.iterdir())]))
    return time.perf_counter() - begun


_COMPARE = """
import resource, sys, time
from pathlib import Path
from dayzero.stages.check.compare import compare
begun = time.perf_counter()
found = compare(Path(sys.argv[1]), Path(sys.argv[2]))
seconds = time.perf_counter() - begun
told = dict(line.split(":", 1) for line in open("/proc/self/status"))
private = sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Private"))
used = resource.getrusage(resource.RUSAGE_SELF)
peak = int(told["VmHWM"].split()[0])
print(seconds, used.ru_utime + used.ru_stime, peak / 1024, private / 1024, found.bytes_read, len(found.places),
      found.passed)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="bytes of each dump")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the dumps are made, and removed again")
    parser.add_argument("--equal", action="store_true", help="the second dump is the same as the first")
    asked = parser.parse_args()
    if asked.folder:
        asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=asked.folder) as root:
        folders = [Path(root) / "a", Path(root) / "b"]
        for number, folder in enumerate(folders):
            folder.mkdir()
            write(folder, int(asked.gigabytes * 1e9), 0.0 if asked.equal or not number else 2e-3, number)
        total = sum(path.stat().st_size for folder in folders for path in folder.iterdir())
        print(f"two dumps, {total / 1e9:.2f} GB together")
        ratios = []
        for _ in range(asked.rounds):
            cold(folders)
            plain = read(folders)
            cold(folders)
            done = subprocess.run([sys.executable, "-c", _COMPARE, *map(str, folders)], capture_output=True, text=True,
                                  check=True)
            seconds, processor, peak, private, taken, places, passed = done.stdout.split()
            ratios.append(plain / float(seconds))
            told, own = float(taken) / 1e9, float(seconds)
            print(f"plain read {total / plain / 1e9:.2f} GB/s, compare {told / own:.2f} GB/s of {told:.2f} GB "
                  f"({float(processor):.1f} processor seconds): {ratios[-1]:.2f} x the plain read; {places} places, "
                  f"passed {passed}; peak {float(peak):.0f} MB resident, {float(private):.0f} MB private at the end")
        print(f"median {statistics.median(ratios):.2f} x, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
