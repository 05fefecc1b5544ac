"""Time and memory of `dayzero preflight` on metadata releases of full size, made from cards.

    python benchmarks/bench_preflight.py

Cold: nothing is remembered. Kept: another run directory, the tensors are remembered. Again: the same run directory. The
floor of a cold look is json.loads of all headers in one process. On a machine that does other work, look at the
processor's seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "examples/targets/h200-2x8.toml"
ROUNDS = 3
LIMITS = {"kimi-k3": {"cold": 4.0, "kept": 4.0, "again": 1.0}, "deepseek-v3": {"cold": 1.5, "kept": 1.5, "again": 1.0}}
"""Seconds of wall time on an idle machine of two cores."""
PEAK = 500
"""MB of resident memory."""


class Run(NamedTuple):
    """What one process took."""

    wall: float
    cpu: float
    peak: float


def timed(release: Path, runs: Path, cache: Path) -> Run:
    """One preflight in a process of its own."""
    command = [sys.executable, "-m", "dayzero.cli", "preflight", str(release), "-t", str(TARGET), "--runs", str(runs),
               "--json"]
    started = time.perf_counter()
    process = subprocess.Popen(command, env=os.environ | {"XDG_CACHE_HOME": str(cache)}, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    answer = process.stdout.read() if process.stdout else b""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if "verdict" not in json.loads(answer or b"{}"):
        raise SystemExit(f"preflight of {release.name} ended with {process.returncode}")
    return Run(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def headers(release: Path) -> list[bytes]:
    """The JSON of all headers."""
    from dayzero.stages.read.headers import PREFIX

    found = []
    for path in sorted(release.glob("*.safetensors")):
        with path.open("rb") as file:
            found.append(file.read(int.from_bytes(file.read(PREFIX), "little")))
    return found


def floor(release: Path) -> None:
    """Print seconds of json.loads over all headers, and their bytes."""
    texts = headers(release)
    started = time.perf_counter()
    for text in texts:
        json.loads(text)
    print(time.perf_counter() - started, sum(map(len, texts)))


def helper(*words: str) -> list[float]:
    """A step in a process of its own: the peak of a process counts what its parent holds when it starts."""
    return [float(word) for word in subprocess.check_output([sys.executable, __file__, *words]).split()]


def measure(card: str, folder: Path) -> None:
    """Rounds of one release."""
    release = folder / card
    helper("--write", str(ROOT / f"examples/cards/{card}.toml"), str(release))
    found: dict[str, list[Run]] = {"cold": [], "kept": [], "again": []}
    floors = []
    for number in range(ROUNDS):
        cache, runs = folder / f"cache-{card}-{number}", folder / f"runs-{card}-{number}"
        found["cold"].append(timed(release, runs / "first", cache))
        found["kept"].append(timed(release, runs / "second", cache))
        found["again"].append(timed(release, runs / "second", cache))
        floors.append(helper("--floor", str(release)))
    seconds, size = median(one[0] for one in floors), floors[0][1]
    print(f"{card}: json.loads of {size / 1e6:.1f} MB of headers takes {seconds:.2f} s")
    for name, taken in found.items():
        wall, cpu, peak = (median(values) for values in zip(*taken, strict=True))
        limit = LIMITS[card][name]
        print(f"  {name:6s} {wall:5.2f} s wall ({min(taken).wall:.2f} to {max(taken).wall:.2f}; limit {limit:g}: "
              f"{'within' if wall <= limit else 'over'}), {cpu:5.2f} s of processor, "
              f"{cpu / seconds:4.1f} x json.loads, {peak:.0f} MB (limit {PEAK}: "
              f"{'within' if peak <= PEAK else 'over'})")


def main() -> None:
    """All releases; or one step of one of them."""
    if len(sys.argv) > 1:
        from dayzero.stages.read import write_release

        step, *paths = sys.argv[1:]
        if step == "--write":
            write_release(*paths)
        else:
            floor(Path(*paths))
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, medians of {ROUNDS}")
    with tempfile.TemporaryDirectory() as folder:
        for card in LIMITS:
            measure(card, Path(folder))


if __name__ == "__main__":
    main()
