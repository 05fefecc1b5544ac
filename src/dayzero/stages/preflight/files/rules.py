"""Rules about files: complete, whole, listed, and with the content that was published."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from dayzero.schema import Finding, TensorTable
from dayzero.stages.preflight.rule import Case, rule
from dayzero.units import format_bytes

from .beside import beside

MOST_LISTED = 1000
"""Findings of one rule that are listed one by one."""


@rule("file-missing")
def file_missing(case: Case) -> Iterator[Finding]:
    """A file that the index or the numbers of the shards tell of is not there.

    ## What
    The index maps tensors to a shard that the folder does not have, or the shards are numbered with a gap.

    ## Why
    Loading stops at the first of its tensors, often after minutes of reading the others.

    ## Example
    A download that was interrupted between two shards.

    ## How to fix
    Fetch the file, or all files again; if it was never published, tell the publishers.
    """
    yield from _first(Finding(rule="file-missing", severity="error", subject=file,
                              message=f"{file} belongs to the release and is not there", hint="fetch the file")
                      for file in case.release.missing_shards)


def _first(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The first of many findings of one rule, and how many more there are."""
    last = None
    for last in islice(findings, MOST_LISTED):
        yield last
    rest = sum(1 for _ in findings)
    if last and rest:
        yield msgspec.structs.replace(last, subject=f"{rest} more", message=f"so it is with {rest} more", facts={})


@rule("file-truncated")
def file_truncated(case: Case) -> Iterator[Finding]:
    """A shard is shorter than its header says.

    ## What
    The header of a shard describes tensors beyond the end of the file, or the file ends within the header; then
    `expected_bytes` is what it has at least, and rules that look for absent tensors are silent.

    ## Why
    The tensors at the end are gone; a loader that maps the file reads zeros or crashes when it gets there.

    ## Example
    A full disk or a broken connection during the download.

    ## How to fix
    Fetch the file again and compare its size.
    """
    sizes = {file.name: file.size for file in case.release.files}
    for file, expected in case.release.short_files.items():
        short = f"{format_bytes(expected - sizes[file])} before its last tensor does"
        ends = "within its header" if file in case.release.cut_shards else short
        yield Finding(
            rule="file-truncated", severity="error", subject=file, message=f"{file} ends {ends}",
            hint="fetch the file again", facts={"expected_bytes": expected, "actual_bytes": sizes[file]})


@rule("file-unlisted")
def file_unlisted(case: Case) -> Iterator[Finding]:
    """A shard holds a tensor that the index does not list, or lists elsewhere; or other weights lie beside.

    ## What
    Header and index disagree about where a tensor is. Or the folder has a file of weights that the index does not list:
    `model.safetensors`, which loaders take before an index, or one with tensors of the same names, or with further ones
    of the same model. Other copies of the weights, and adapters, are a warning.

    ## Why
    Loaders that follow the index never see the tensor; loaders that read all shards do: two engines run two models.
    With other weights beside, what is looked at need not be what is run.

    ## Example
    A shard was replaced after the index had been written. A `model.safetensors` of an earlier save was left beside the
    index and its shards.

    ## How to fix
    Write the index again from the headers, or take index and shards from the same revision. Remove other copies of the
    weights, or load from a folder without them.
    """
    if case.release.index is not None:
        yield from _first(_unlisted(case.release.index, case.release.tensors))
    if case.has_tensors:
        yield from _first(beside(case.release))


def _unlisted(index: dict[str, str], table: TensorTable) -> Iterator[Finding]:
    for group in table.groups:
        for row in range(group.count):
            tensor, file = group.name(row), table.files[int(group.file.values[row])]
            listed = index.get(tensor)
            if listed != file:
                where = f"lists it in {listed}" if listed else "does not list it"
                yield Finding(rule="file-unlisted", severity="error", subject=tensor,
                              message=f"{file} holds {tensor}, but the index {where}",
                              hint="take index and shards from the same revision", facts={"file": file})


@rule("file-hash")
def file_hash(case: Case) -> Iterator[Finding]:
    """The content of a file is not what was published.

    ## What
    The SHA-256 of a file differs from the one that the hub or the release's manifest states.

    ## Why
    A changed byte in a weight can go unnoticed in short tests and still change answers.

    ## Example
    A storage error, or a file from another revision.

    ## How to fix
    Fetch the file again. If it differs again, take another mirror.
    """
    for file in case.release.files:
        if file.sha256 and file.expected_sha256 and file.sha256 != file.expected_sha256:
            yield Finding(rule="file-hash", severity="error", subject=file.name,
                          message=f"the content of {file.name} is not what was published", hint="fetch the file again",
                          facts={"expected": file.expected_sha256, "computed": file.sha256})
