"""What a comparison of the files alone says: whether the weights that ran are those of the reference."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dayzero.data.compare import words
from dayzero.progress import Progress
from dayzero.runtime.dumps import layer_number
from dayzero.schema import Check, Divergence, Release

from .layers import order
from .measure import judged
from .weights import compare

_NAME = "weights: tensors that are not the reference's"
_SOURCE = "bytes are compared; of two dtypes, the values with what a cast of the reference's gives"
_LOADED = "files: what a loader takes in place of what was read"
_SHOWN = 3


class Files(NamedTuple):
    """One check, or why there is none."""

    checks: list[Check]
    not_made: dict[str, str]
    needless: dict[str, str]
    divergence: Divergence | None = None
    """The first place in the model whose weights differ."""


def check_files(release: Release, reference: Release, progress: Progress) -> Files:
    """The tensors that ran against the reference's, in the files. Raises ReleaseError when a file cannot be read."""
    loaded = check_loaded(release, reference)
    if same_files(release, reference):
        return Files(loaded, {}, {_NAME: "the reference is the same files"})
    found = compare(release, reference, progress)
    not_made = {}
    if found.other_form:
        not_made[f"{_NAME}, of {len(found.other_form)} tensors such as {found.other_form[0]}"] = (
            "not comparable tensor by tensor: one release stores them in another form")
    if not found.compared and not found.differ:
        return Files(loaded, not_made or {_NAME: "no tensor of the files is in both"}, {})
    differ = sorted(found.differ, key=lambda each: order(each.place))
    detail = f"all {found.compared} tensors that are compared are the same"
    if differ:
        largest = max(differ, key=lambda each: each.relative_l2)
        detail = (f"{', '.join(each.name for each in differ[:_SHOWN])}{' ...' if len(differ) > _SHOWN else ''}; "
                  f"largest relative L2 {largest.relative_l2:.3g}, of {largest.name}; {found.compared} compared")
    first = differ[0] if differ else None
    return Files(
        [*loaded, judged(_NAME, float(len(differ)), 0.0, _SOURCE, detail)], not_made, {},
        first and Divergence(layout="the files", place=first.place, layer=layer_number(first.place), tensor=first.name,
                             relative_l2=first.relative_l2, before=0.0))


def same_files(release: Release, reference: Release) -> bool:
    """Whether both were read from one folder."""
    return release.root is None or Path(release.root).resolve() == Path(str(reference.root)).resolve()


def check_loaded(release: Release, reference: Release) -> list[Check]:
    """A check that fails when a folder has files that loaders take before, or on top of, those that were read."""
    both = [release] if same_files(release, reference) else [release, reference]
    odd = [f"{file} of {each.name}" for each in both for file in _taken(each)]
    return [judged(_LOADED, float(len(odd)), 0.0, "names are compared", ", ".join(odd))] if odd else []


def _taken(release: Release) -> list[str]:
    loader = words().loader
    return [*({loader.single} & set(release.unread)),
            *(file.name for file in release.files if file.name in loader.adapters)]
