"""locate: where a run first computes something else than the released model, how the error looks, and what explains it.

    recorded   a golden dump as rows of sequences
    aligned    one of other code, as of an engine, under the reference's names
    errors     how far values are apart
    judging    every place's own error against its own noise
    rounded    matrices that are the reference's, rounded
    causes     changes of the reference that make an error vanish
    logprobs   the same where no more is known than what a server says
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from dayzero.errors import NotPossible, ReleaseError
from dayzero.progress import SILENT, Progress
from dayzero.schema.located import Location

from .aligned import renamed
from .finding import Finder
from .judging import Judged, judge
from .logprobs import locate_logprobs
from .recorded import DumpRows
from .rounded import Found

__all__ = ["locate"]


def locate(release: Path | str, dump: Path | str, *, noise: Sequence[Path | str] = (), own: bool = False,
           causes: bool = True, looked_into: int = 4, progress: Progress = SILENT) -> Location:
    """Where the run that a golden dump was recorded of is wrong. `release`: its folder; `noise`: dumps of runs that are
    known to be right; `own`: whether the release's own code is to run, here; `causes`: whether to look for them;
    `looked_into`: how many guilty places are.

    Raises NotPossible when the reference cannot be run here or the dump does not hold what is needed, StoreError when a
    dump cannot be read, ReleaseError when the release's files do not fill its model.
    """
    from dayzero.runtime.substitution import runner, threads_for

    root = folder_of(release)
    with ExitStack() as stack:
        run, *trusted = (stack.enter_context(closing(DumpRows(Path(each)))) for each in (dump, *noise))
        if all(item.entry.what == "logprobs" for item in run.dump.items):
            return locate_logprobs(root, run.dump, [each.dump for each in trusted], own=own, causes=causes,
                                   progress=progress)
        progress.update("reading the reference")
        reference = stack.enter_context(runner(root, run.precision, own=own))
        stack.enter_context(threads_for(reference.truth.watched))
        progress.update("substituting")
        seen, *right = (stack.enter_context(renamed(reference.truth, each)) for each in (run, *trusted))
        judged = judge(reference, seen, right)
        check_common(judged)
        weights = Found(reference, seen, judged, progress)
        if causes and weights.round_reference():
            judged = judge(reference, seen, right)
            weights.settle(judged)
        finder = Finder(reference, seen, judged, causes=causes, progress=progress)
        located = finder.located(looked_into)
    missing = run.not_compared | judged.others
    return Location(located=tuple(located), places=tuple(judged.places), not_compared=missing,
                    rounded=weights.told(),
                    reference=f"{root.name}, one process, f32, with what the run had at every border")


def folder_of(release: Path | str) -> Path:
    """The release's folder. Raises ReleaseError where there is none."""
    root = Path(release)
    if not (root / "config.json").is_file():
        raise ReleaseError(f"{root} is no release folder: it has no config.json", "give the folder of a release")
    return root.resolve()


def check_common(judged: Judged) -> None:
    """Raises NotPossible when the run cannot be one of the reference's model."""
    if not judged.places:
        raise NotPossible("the dump and the reference have no place in common", "record modules by their own names")
    if len(judged.others) > len(judged.places):
        name, why = next(iter(judged.others.items()))
        raise NotPossible(f"the dump is of another model: {name}: {why}", "give the release that was run")
