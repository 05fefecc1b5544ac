"""A baseline folder: what was right, and how every run of the gate since then ended.

    baseline.json    noun `Baseline`; written last
    reference/       golden dump in f32, with the noise of f32: later references are compared with it
    noise/           correct runs in the precision of the runs: what tells their noise is not made by what is judged
    scores.json      noun `Evaluation`, where tasks were evaluated
    history.jsonl    one `GateResult` a line, oldest first; kept across baselines
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dayzero.errors import StoreError
from dayzero.runtime.golden import open_dump
from dayzero.schema import from_json, to_json
from dayzero.schema.evaluation import Evaluation
from dayzero.schema.gate import GATE_FORMAT, Baseline, GateResult
from dayzero.schema.store import refuse_link, write_atomic
from dayzero.text import one_line

BASELINE, REFERENCE, SCORES, HISTORY = "baseline.json", "reference", "scores.json", "history.jsonl"
NOISE = "noise"
KEPT = 500
"""Results that the history holds; older ones go."""
_NEW, _AGAIN = ".new", "restore it, or make it again with --update"


class BaselineFolder:
    """Raises StoreError when it is something else, or cannot be read or written."""

    def __init__(self, path: Path) -> None:
        refuse_link(path)
        if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not self._ours(path))):
            raise StoreError(f"{path} is no baseline folder", "give an empty folder, or one that the gate made")
        self.path = path

    @property
    def reference(self) -> Path:
        """The golden dump."""
        return self.path / REFERENCE

    @property
    def noise(self) -> tuple[Path, ...]:
        """Correct runs in the precision of the runs."""
        return tuple(sorted(path for path in (self.path / NOISE).glob("*") if path.is_dir()))

    def baseline(self) -> Baseline | None:
        """The last good state; None: nobody has stored one yet."""
        path = self.path / BASELINE
        try:
            found = from_json(path.read_bytes(), Baseline)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} is damaged: {error}", _AGAIN) from None
        if found.format != GATE_FORMAT:
            raise StoreError(f"{path} is of format {found.format}, this version reads {GATE_FORMAT}",
                             "make it again with --update")
        return found

    def scores(self) -> Evaluation | None:
        """Of the last good state; None: none were made."""
        path = self.path / SCORES
        try:
            return from_json(path.read_bytes(), Evaluation)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} is damaged: {error}", _AGAIN) from None

    def store(self, baseline: Baseline, reference: Path, noise: Sequence[Path], scores: Evaluation | None) -> None:
        """Take these dumps in the place of those before. When it is interrupted there is the baseline before, or none:
        never one with another's dumps."""
        made = self.path / _NEW
        try:
            self._prepare(made, baseline, reference, noise, scores)
            self._put(made)
        except OSError as error:
            raise StoreError(f"the baseline cannot be stored in {self.path}: {_said(error)}",
                             "make room there or take another folder, then --update again") from None
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _prepare(self, made: Path, baseline: Baseline, reference: Path, noise: Sequence[Path],
                 scores: Evaluation | None) -> None:
        """All of it, beside the one before: the dumps may be on another file system, and the disk may be full."""
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(reference, made / REFERENCE)
        for each in noise:
            shutil.copytree(each, made / NOISE / each.name)
        if scores is not None:
            write_atomic(made / SCORES, to_json(scores) + b"\n")
        write_atomic(made / BASELINE, to_json(baseline) + b"\n")

    def _put(self, made: Path) -> None:
        """In the place of the one before. Names change, which takes no room; the baseline's own comes last."""
        (self.path / BASELINE).unlink(missing_ok=True)
        for name in (REFERENCE, NOISE):
            shutil.rmtree(self.path / name, ignore_errors=True)
        (self.path / SCORES).unlink(missing_ok=True)  # those of another baseline say nothing about this one
        for name in (REFERENCE, NOISE, SCORES, BASELINE):
            if (made / name).exists():
                (made / name).rename(self.path / name)

    def check_writable(self) -> None:
        """Raises StoreError where nothing can be stored, before anything is run for it."""
        new = self.path / _NEW
        made = [new, *(each for each in new.parents if not each.exists())]
        try:
            new.mkdir(parents=True, exist_ok=True)
            for each in made:  # what is interrupted later leaves nothing behind
                each.rmdir()
        except OSError as error:
            raise StoreError(f"the baseline folder {self.path} cannot be written: {_said(error)}",
                             "give one that can, or leave out --update") from None

    def check_whole(self, baseline: Baseline) -> None:
        """Raises StoreError where the dumps cannot be read or are those of another baseline, before anything is run."""
        for folder in (self.reference, *self.noise):
            try:
                digest = digest_of(folder, verify=True)
            except (StoreError, OSError) as error:
                name = folder.relative_to(self.path)
                raise StoreError(f"the baseline's {name} is damaged: {error}", _AGAIN) from None
            if folder == self.reference and digest != baseline.digest:
                raise StoreError(f"the baseline's {REFERENCE} is not what {BASELINE} was stored with", _AGAIN)

    def note(self, result: GateResult) -> None:
        """Add a line to the history."""
        self.path.mkdir(parents=True, exist_ok=True)
        lines = [*self.history(), result][-KEPT:]
        write_atomic(self.path / HISTORY, b"".join(to_json(each) + b"\n" for each in lines))

    def history(self) -> list[GateResult]:
        """How the gate ended, oldest first; lines of other formats are left out."""
        try:
            lines = (self.path / HISTORY).read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self.path / HISTORY} cannot be read: {error.strerror}", "check the folder") from None
        return [found for line in lines if (found := _result(line)) is not None]

    @staticmethod
    def _ours(path: Path) -> bool:
        return any((path / name).exists() for name in (BASELINE, HISTORY, REFERENCE))


def digest_of(folder: Path, *, verify: bool = False) -> str:
    """SHA-256 over what a dump recorded, whatever files it lies in. `verify`: compare the values with what was written
    down of them. Raises StoreError when it cannot be read, or is not what was written."""
    whole = hashlib.sha256()
    with open_dump(folder) as dump:
        for item in dump.items if verify else ():
            dump.verify(item)
        for line in sorted(f"{item.entry.name} {item.entry.what} {item.entry.slot} {item.entry.pass_no} "
                           f"{item.entry.call} {item.entry.digest}" for item in dump.items):
            whole.update(f"{line}\n".encode())
    return whole.hexdigest()


def _said(error: OSError) -> str:
    """Of one error, or of the first of many as a copy of a folder collects them."""
    if error.strerror is None and error.args and isinstance(error.args[0], list):
        return one_line(str(error.args[0][0][-1]), 200)
    return error.strerror or str(error)


def _result(line: bytes) -> GateResult | None:
    try:
        return from_json(line, GateResult)
    except (msgspec.DecodeError, ValueError):
        return None
