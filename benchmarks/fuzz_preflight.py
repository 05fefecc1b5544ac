"""Feed preflight with releases and targets that nobody publishes in good faith, and say what it did not survive.

    python benchmarks/fuzz_preflight.py --minutes 10 [--seed N] [--workers W] [--keep FOLDER]
    python benchmarks/fuzz_preflight.py --again FOLDER/CASE

A failure is an exception that is no DayzeroError, an error or finding that is not one line, more than 10 seconds (of
processor time, or 60 in all), more than 1 GB, a program started, or a file opened outside the release's folder. Each
failing case is kept as a folder; `--again` runs it once more. Exit code 1 when there were any.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from tests.support.fuzz_changes import Written, cases
from tests.support.fuzz_outcome import MOST_BYTES, outcome, peak_bytes
from tests.support.fuzz_seeds import Draft, seeds

from dayzero.stages.preflight import rules

CPU_SECONDS, WALL_SECONDS = 10, 60
ADDRESS_SPACE = 8 * 2**30
"""The machine's safeguard; what counts is the memory that is really used."""
BATCH = 50


def work(number: int, folder: Path, until: float) -> None:
    """A worker: cases one after the other, each told on standard output before and after."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    faulthandler.register(signal.SIGUSR1, file=sys.stderr)
    (folder / "seeds").mkdir(parents=True)
    drafts = seeds(folder / "seeds")
    count = 0

    def one(pick: int, drawn: list[Any], values: bool) -> None:
        nonlocal count
        if time.time() < until:
            count += 1
            _one(folder / f"case-{number}-{count}", drafts[pick % len(drafts)], drawn, values)

    batch = 0
    while time.time() < until:
        batch += 1
        run = given(st.integers(0, 999), cases, st.booleans())(one)
        run = settings(max_examples=BATCH, database=None, deadline=None, phases=[Phase.generate],
                       suppress_health_check=list(HealthCheck))(run)
        with suppress(Flaky):  # its engine's own doubt about repeated draws; the next batch starts anew
            seed(number * 1_000_003 + batch)(run)()


def _one(case: Path, draft: Draft, drawn: list[Any], values: bool) -> None:
    release = Written(copy.deepcopy(draft), drawn).write(case)
    about = {"release": str(release.relative_to(case)), "values": values, "planned": len(drawn) % 4 == 0}
    (case / "case.json").write_text(json.dumps(about))
    (case / "changes.txt").write_text("\n".join(repr(change)[:2000] for change in drawn))
    peak_bytes(forget=True)
    tell("start", case=str(case))
    started = time.process_time()
    found = outcome(release, case / "target.toml", case.parent / "cache", values=values, planned=bool(about["planned"]))
    seconds, peak = time.process_time() - started, peak_bytes()
    if peak > MOST_BYTES:
        found.problem = found.problem or f"took {peak / 1e9:.2f} GB"
    if found.problem:
        (case / "problem.txt").write_text(f"{found.problem}\n{found.trace}")
    else:
        shutil.rmtree(case)
    tell("done", case=str(case), end=found.end, rules=sorted(found.rules), problem=found.problem, trace=found.trace,
         seconds=seconds, peak=peak)


def tell(what: str, **facts: Any) -> None:
    """One line of JSON for the parent."""
    sys.stdout.write(json.dumps({"what": what, **facts}) + "\n")
    sys.stdout.flush()


class Worker:
    """A process that runs cases, and what is seen of it from outside."""

    def __init__(self, number: int, folder: Path, until: float) -> None:
        self.errors = folder / f"stderr-{number}.txt"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--worker", str(number), str(folder / f"worker-{number}"), str(until)],
                stdout=subprocess.PIPE, stderr=errors, text=True)  # fmt: skip
        self.done: list[dict[str, Any]] = []
        self.case, self.since, self.cpu = "", time.monotonic(), 0.0
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            message = json.loads(line)
            if message["what"] == "start":
                self.since, self.cpu, self.case = time.monotonic(), self._cpu(), message["case"]
            else:
                self.case = ""
                self.done.append(message)

    def _cpu(self) -> float:
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def hangs(self) -> bool:
        """Whether its case takes longer than it may. It is then ended, with a word of where it was."""
        late = time.monotonic() - self.since > WALL_SECONDS or self._cpu() - self.cpu > CPU_SECONDS
        case = self.case
        if not case or not late or self.process.poll() is not None:
            return False
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        self.process.kill()
        self.process.wait()
        self.done.append({"case": case, "end": "hang", "rules": [], "problem": "hang: " + self._where(), "peak": 0,
                          "trace": self.errors.read_text()[-4000:], "seconds": CPU_SECONDS})  # fmt: skip
        return True

    def _where(self) -> str:
        lines = [line.strip() for line in self.errors.read_text().splitlines() if "src/dayzero" in line]
        return lines[0] if lines else "somewhere"

    def died(self) -> None:
        """Note a worker that ended in the middle of a case."""
        self.reader.join()
        if self.process.returncode:
            text = self.errors.read_text()
            self.done.append({"case": self.case, "end": "died", "rules": [], "peak": 0, "seconds": 0,
                              "trace": text[-4000:],
                              "problem": f"the process died: {self.process.returncode} {text[-200:]}"})  # fmt: skip


def hunt(minutes: float, first: int, workers: int, folder: Path) -> list[dict[str, Any]]:
    """All cases that ran within so many minutes."""
    until, finished = time.time() + minutes * 60, []
    running, number = [], first
    while time.time() < until or running:
        while len(running) < workers and time.time() < until - 1:
            running.append(Worker(number, folder, until))
            number += 1
        time.sleep(0.2)
        for worker in list(running):
            if worker.hangs() or worker.process.poll() is not None:
                worker.died() if worker.process.returncode != -signal.SIGKILL else worker.reader.join()
                running.remove(worker)
                finished += worker.done
    return finished


def report(cases: list[dict[str, Any]], minutes: float, keep: Path) -> int:
    """Print what came of it, keep one case of each kind of failure; how many kinds there are."""
    seconds = sorted(case["seconds"] for case in cases)
    fired = {rule for case in cases for rule in case["rules"]}
    silent = sorted({rule.name for rule in rules()} - fired)
    print(f"{len(cases)} cases in {minutes:g} min: {len(cases) / minutes / 60:.1f}/s; median "
          f"{seconds[len(seconds) // 2]:.3f} s, slowest {seconds[-1]:.2f} s; most memory "
          f"{max(case['peak'] for case in cases) / 1e6:.0f} MB")
    print("ends:", ", ".join(f"{end or 'failure'} {count}" for end, count in Counter(
        case["end"] for case in cases).most_common()))  # fmt: skip
    print(f"rules with findings: {len(fired)}; without: {', '.join(silent) or 'none'}")
    kinds: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        if case["problem"]:
            where = [line.strip() for line in case["trace"].splitlines() if "src/dayzero" in line]
            kinds.setdefault(f'{where[-1]} {case["problem"][:20]}' if where else case["problem"][:60], []).append(case)
    for where, alike in sorted(kinds.items(), key=lambda kind: -len(kind[1])):
        kept = keep / Path(alike[0]["case"]).name
        if alike[0]["case"] and Path(alike[0]["case"]).exists():
            keep.mkdir(parents=True, exist_ok=True)
            os.rename(alike[0]["case"], kept)
        print(f"\n{len(alike)} x {alike[0]['problem'][:300]}\n  {where}\n  {kept}")
    print(f"\n{len(kinds)} kinds of failure")
    return len(kinds)


def again(case: Path) -> int:
    """One kept case; 1 if it fails still."""
    about = json.loads((case / "case.json").read_text())
    with tempfile.TemporaryDirectory() as cache:
        peak_bytes(forget=True)
        started = time.process_time()
        found = outcome(case / about["release"], case / "target.toml", Path(cache), values=about["values"],
                        planned=about["planned"])  # fmt: skip
    print(f"{found.end or 'failure'} {found.problem}\n{found.trace}"
          f"{time.process_time() - started:.2f} s, {peak_bytes() / 1e6:.0f} MB; {', '.join(sorted(found.rules))}")
    return int(bool(found.problem))


def main() -> int:
    """0 when nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir(), "fuzz-preflight"))
    parser.add_argument("--again", type=Path)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given_ = parser.parse_args()
    if given_.worker:
        work(int(given_.worker[0]), Path(given_.worker[1]), float(given_.worker[2]))
        return 0
    if given_.again:
        return again(given_.again)
    given_.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given_.keep) as folder:
        return int(report(hunt(given_.minutes, given_.seed, given_.workers, Path(folder)), given_.minutes,
                          given_.keep) > 0)


if __name__ == "__main__":
    sys.exit(main())
