"""What has to be true of preflight on any folder and target: findings, or an error of two lines; no more memory than
there may be, and no file opened that is none of its business.
"""

from __future__ import annotations

import io
import json
import os
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

import dayzero
from dayzero.errors import DayzeroError, NotPossible
from dayzero.resolve import resolve_target
from dayzero.schema import Findings, to_json
from dayzero.stages.plan import plan
from dayzero.stages.preflight import config_ledger, ledger_table, overview, preflight, rules, sarif
from dayzero.stages.read import read

MOST_BYTES = 10**9
LONGEST = 2000
"""Characters of a message."""
_ACTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "socket.bind",
         "ctypes.dlopen")
_TRIES = [sys.executable, "-I", "-c"]
"""How preflight tries whether installed packages have a name: in a process that does not see the release."""
_OURS = tuple(os.path.realpath(path) for path in {
    sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *dayzero.__path__, *sys.path[1:]})  # fmt: skip


@dataclass
class Outcome:
    """How one case ended."""

    end: str = ""
    """The verdict, or the name of the error."""
    rules: set[str] = field(default_factory=set)
    """Rules that had findings."""
    problem: str = ""
    """What must not be; empty when all is well."""
    trace: str = ""
    """Where, for an exception."""


class _Watch:
    """Sees every file that is opened and every program that is started while it is on."""

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] = ()
        self.on = False
        self.seen: list[str] = []
        self._hooked = False

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "subprocess.Popen" and list(args[1][:3]) == _TRIES:
            return
        if event in _ACTS:
            self.seen.append(f"{event} {args[0]!r}"[:300])
        elif event == "open" and isinstance(args[0], str | bytes):
            path = os.path.realpath(os.fsdecode(args[0]))
            if not any(path == root or path.startswith(f"{root}/") for root in (*self.allowed, *_OURS)):
                self.seen.append(f"opened {args[0]!r} ({path})"[:300])

    @contextmanager
    def watching(self, allowed: tuple[Path, ...]) -> Iterator[list[str]]:
        """`allowed`: files, and folders with all that is in them, that may be opened."""
        if not self._hooked:  # it cannot be taken away again
            sys.addaudithook(self._hook)
            self._hooked = True
        self.allowed, self.seen, self.on = tuple(os.path.realpath(path) for path in allowed), [], True
        try:
            yield self.seen
        finally:
            self.on = False


WATCH = _Watch()


def peak_bytes(*, forget: bool = False) -> int:
    """Most memory that this process had since the last call with `forget`."""
    if forget:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def outcome(release: Path, target: Path, cache: Path, *, values: bool = False, planned: bool = False) -> Outcome:
    """Read, preflight, write and show what was found; `planned`: plan as well."""
    result = Outcome()
    before = set(release.parent.rglob("*"))
    beside = (release.parent.parent / "blobs",) if release.parent.name == "snapshots" else ()
    allowed = (release, target, cache, *beside)
    with WATCH.watching(allowed) as seen, warnings.catch_warnings():
        try:
            warnings.simplefilter("error")
            _through(release, target, cache, result, values, planned)
        except (DayzeroError, NotPossible) as error:
            result.end = type(error).__name__
            result.problem = _wrong_error(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit and the like are no better
            result.problem = f"{type(error).__name__}: {str(error)[:300]!r}"
            result.trace = traceback.format_exc()[-6000:]
    if seen:
        result.problem = f"{seen[0]} (of {len(seen)})"
    if set(release.parent.rglob("*")) - before:
        result.problem = "something was written into the release"
    return result


def _through(release: Path, target: Path, cache: Path, result: Outcome, values: bool, planned: bool) -> None:
    on = resolve_target(target)
    found = read(release, cache=cache, metadata_only=not values)
    findings = preflight(found, on, values=values)
    result.end, result.rules = findings.verdict, {finding.rule for finding in findings.findings}
    result.problem = _wrong_findings(findings)
    to_json(found)
    json.dumps(sarif(findings, found, on, target))
    console = Console(file=io.StringIO(), width=100)
    console.print(overview(findings, found, on))
    if planned and not result.problem:
        console.print(ledger_table(config_ledger(found, on.engine)))
        to_json(plan(found.model, on, top=3))


def _wrong_error(error: DayzeroError | NotPossible) -> str:
    message = error.message if isinstance(error, DayzeroError) else error.reason
    for text in (message, error.hint):
        if not text.isprintable() or len(text) > LONGEST or (not text and isinstance(error, DayzeroError)):
            return f"{type(error).__name__} is not one line each: {text[:200]!r} ({len(text)} characters)"
    return ""


def _wrong_findings(findings: Findings) -> str:
    text = to_json(findings)
    json.loads(text)
    if b"CANARY" in text:
        return "what is outside the folder got into the findings"
    known = {rule.name for rule in rules()}
    for one in findings.findings:
        if one.rule not in known:
            return f"no rule is called {one.rule!r}"
        for part in (one.message, one.hint):
            if not part or not part.isprintable() or len(part) > LONGEST:
                return f"{one.rule}: not one line: {part[:200]!r} ({len(part)} characters)"
        if not one.subject.isprintable() or len(one.subject) > LONGEST:
            return f"{one.rule}: the subject is not one line: {one.subject[:200]!r} ({len(one.subject)} characters)"
    return ""
