"""How fast `dayzero verify` reads, beside sha256sum over as many files at once: `bench_verify.py [ROUNDS] [MIB] [DIR]`.

Files of random bytes are written to DIR (default: the system's temporary folder) and read once, so that all find
them in the page cache: what is compared is the work, not the disk. They take turns. The ratio should be 0.9 or more.
Some builds of sha256sum do not use the processor's instructions for SHA-256; openssl does, and is shown where it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from dayzero.stages.read import verify_release
from dayzero.stages.read.threads import WORKERS

FILES = 2 * WORKERS
COMMANDS = {"sha256sum": ["sha256sum"], "openssl": ["openssl", "dgst", "-r", "-sha256"]}


def fill(folder: Path, mib: int) -> list[str]:
    """Write the files; their names."""
    block = os.urandom(2**20)
    names = [f"model-{number:05d}-of-{FILES:05d}.safetensors" for number in range(1, FILES + 1)]
    for number, name in enumerate(names):
        with (folder / name).open("wb") as file:
            for _ in range(mib):
                file.write(bytes([number]) + block[1:])
    return names


def by_command(command: list[str], folder: Path, names: list[str]) -> tuple[float, str]:
    """Seconds, and what it printed: one process for each file, as many at once as verify works on."""
    start = time.perf_counter()
    done = subprocess.run(["xargs", "-P", str(WORKERS), "-n", "1", *command], input="\n".join(names), text=True,
                          cwd=folder, capture_output=True, check=True)
    return time.perf_counter() - start, done.stdout


def by_verify(folder: Path, manifest: Path, cache: Path) -> float:
    """Seconds. Every file is read, and found to be what the other one found."""
    start = time.perf_counter()
    found = verify_release(str(folder), manifest=manifest, again=True, cache=cache)
    seconds = time.perf_counter() - start
    assert found.passed and len(found.files) == FILES
    return seconds


def main(rounds: int, mib: int, place: str | None) -> None:
    """Print the rates and verify's ratio to each, for every round and over all."""
    commands = {name: command for name, command in COMMANDS.items() if shutil.which(command[0])}
    ratios: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory(dir=place) as at:
        folder, sums = Path(at, "release"), Path(at, "SHA256SUMS")
        folder.mkdir()
        names = fill(folder, mib)
        sums.write_text(by_command(COMMANDS["sha256sum"], folder, names)[1])
        size = FILES * mib * 2**20 / 1e9
        print(f"{FILES} files of {mib} MiB, {WORKERS} at once")
        for number in range(1, rounds + 1):
            theirs = {name: by_command(command, folder, names)[0] for name, command in commands.items()}
            ours = by_verify(folder, sums, Path(at, "cache"))
            for name, seconds in theirs.items():
                ratios[name].append(seconds / ours)
            rates = "   ".join(f"{name} {size / seconds:5.2f} GB/s ({ratios[name][-1]:.2f})"
                               for name, seconds in theirs.items())
            print(f"round {number}: verify {size / ours:5.2f} GB/s   {rates}")
    for name, all_ratios in ratios.items():
        print(f"verify / {name}: median {median(all_ratios):.3f}, smallest {min(all_ratios):.3f}, "
              f"largest {max(all_ratios):.3f}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(int(arguments[0]) if arguments else 7, int(arguments[1]) if len(arguments) > 1 else 128,
         arguments[2] if len(arguments) > 2 else None)
