"""Rules about what is stored in a weight's place: a second output head, integers without a scale."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from dayzero.placement.split import UNUSED
from dayzero.schema import Finding, Release, TensorGroup, WeightFamily
from dayzero.stages.preflight.quant.modules import PLAIN, stem
from dayzero.stages.preflight.rule import Case, rule

_PART = 1 << 22
"""Bytes that are compared at a time."""
_INTEGERS = ("BOOL", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")
_FLOATING = ("attention", "linear", "mlp", "experts", "shared_experts", "embedding", "head", "norm")
"""First words of the roles of weights that are numbers with a fraction."""
_DESCRIPTIONS = ("quant*.json",)
"""Files that state quantisation in ways of their own."""


@rule("weights-tied")
def weights_tied(case: Case) -> Iterator[Finding]:
    """The config ties the output head to the embedding, and the files hold a head of its own that is another matrix.

    ## What
    With tie_word_embeddings the head is the embedding. Where the files hold both matrices, their bytes are compared; if
    they are the same the second one is only superfluous. Without their data (headers only) nothing is said.

    ## Why
    Some loaders take the embedding, others load the head and untie the two without a word: they run two models.

    ## Example
    A model was fine-tuned with an untied head, and its config still says that it is tied.

    ## How to fix
    Set tie_word_embeddings to false if the head is meant, or remove the head from the files.
    """
    if not case.model.tied_embeddings or not case.release.has_weights:
        return
    embedding, head = (_only(case, role) for role in ("embedding", f"{UNUSED}.head"))
    if embedding is None or head is None or _same(case.release, embedding, head):
        return
    yield Finding(
        rule="weights-tied", severity="error", subject=head.name(0),
        message=f"tie_word_embeddings is true, but {head.name(0)} is another matrix than {embedding.name(0)}",
        hint="set tie_word_embeddings to false, or remove the head from the files",
        facts={"shape": list(head.shape), "embedding_shape": list(embedding.shape)})


def _only(case: Case, role: str) -> TensorGroup | None:
    """The one matrix of that role; None where there is none or several."""
    found = [family.pattern for family in case.model.families if family.role == role and len(family.shape) > 1]
    groups = case.patterns.groups[found[0]] if len(found) == 1 else []
    return groups[0] if len(groups) == 1 and groups[0].count == 1 else None


def _same(release: Release, first: TensorGroup, second: TensorGroup) -> bool:
    """Whether two tensors have the same shape, dtype and bytes. False for data that cannot be read: other rules say
    why."""
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    try:
        return all(one == other for one, other in zip(_data(release, first), _data(release, second), strict=True))
    except (OSError, ValueError):
        return False


def _data(release: Release, group: TensorGroup) -> Iterator[bytes]:
    left = group.tensor_bytes
    with (Path(str(release.root)) / release.tensors.files[int(group.file.values[0])]).open("rb") as file:
        file.seek(int(group.start.values[0]))
        while left:
            part = file.read(min(_PART, left))
            if not part:
                return
            left -= len(part)
            yield part


@rule("weights-integers")
def weights_integers(case: Case) -> Iterator[Finding]:
    """A weight is stored as integers, and nothing says how to make numbers of them.

    ## What
    A matrix or norm of the model has an integer dtype in its header, but the release states no quantisation and holds
    no scale for it, while the other weights are floats.

    ## Why
    Loaders cast: 0.73 was stored as 0 and is loaded as 0.0. No loader complains.

    ## Example
    A script that converted a state dict without looking at dtypes saved one projection as I64.

    ## How to fix
    Convert the tensor again from the original weights, or ship the quantisation config and the scales.
    """
    described = any(fnmatchcase(file.name, pattern) for file in case.release.files for pattern in _DESCRIPTIONS)
    if case.model.quantization is not None or described or case.model.dtype not in PLAIN:
        return
    for family in case.model.families:
        if _is_cast(family) and stem(family.pattern) not in case.scales:
            yield Finding(
                rule="weights-integers", severity="error", subject=family.pattern,
                message=f"{family.pattern} is stored as {family.dtype}, without a scale or a statement of quantisation",
                hint="convert it again from the original weights", facts={"file": family.dtype, "count": family.count})


def _is_cast(family: WeightFamily) -> bool:
    return (family.dtype in _INTEGERS and family.pattern.endswith((".weight", ".bias"))
            and family.role.removeprefix("mtp.").partition(".")[0] in _FLOATING)
