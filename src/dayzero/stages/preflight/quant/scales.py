"""Rules about the scales of quantised weights."""

from __future__ import annotations

from collections.abc import Iterator

from dayzero.data.vocabulary import vocabulary
from dayzero.placement.split import UNUSED, is_mtp, ways
from dayzero.schema import Finding, Layout, TensorGroup, WeightFamily
from dayzero.stages.preflight.rule import Case, rule

from .modules import Module, agrees
from .stated import Format

_FUSED = ("qkv", "gate_up", "in", "qkv_down")
"""Last words of the roles of matrices that are several in one: each can have a last block that is only a part."""
MOST_PARTS = 8
"""Parts of a fused matrix that are reckoned with."""
Shape = tuple[int, ...]


@rule("scale-shape")
def scale_shape(case: Case) -> Iterator[Finding]:
    """The scales of a weight are not as many as its blocks, or the engine allocates another number.

    ## What
    Rows and columns of a weight, divided by the blocks that the config states (or that are part of the format) and
    rounded up, against the shape of its scales in the header. One scale for the whole weight or for each row is right
    as well where no blocks are stated. With `scale_rounding = "floor"`: the number of blocks that the engine allocates
    for a rank's share of a width against the number that the share has.

    ## Why
    The last block is often a part of one. Code that rounds down allocates one row of scales too few: loading stops, or
    the last rows are computed with whatever lies behind.

    ## Example
    576 rows in blocks of 128 need five rows of scales, not four. A share of 2,152 in groups of 32 needs 68 scales; an
    engine that rounded down allocated 67 (vllm-project/vllm-ascend#12201).

    ## How to fix
    Round up, where the scales are written and where they are allocated.
    """
    if not case.has_tensors:
        return
    for module in case.modules:
        if module.is_plain or module.family.role.startswith(UNUSED):
            continue
        form = case.stated.of(module.name(module.layers[0]), module.role)
        extents = _extents(module)
        for scale in _scales_of(case, module):
            if form and extents and agrees(form.scheme, module.family, form):
                yield from _against_blocks(module, scale, form, extents)
        if extents and case.target.engine.facts.scale_rounding == "floor":
            block = _block_of(case, module, form, extents)
            if block:
                yield from _allocated(case, module, block, extents)


def _scales_of(case: Case, module: Module) -> list[TensorGroup]:
    """Scales that lie beside a module's weights: in a place where these are."""
    layers = set(module.layers)
    return [group for group in case.scales.get(module.stem, ()) if layers.intersection(group.layer.values[:1].tolist())
            or layers.intersection(group.layer.values.tolist())]


def _extents(module: Module) -> tuple[int, int] | None:
    """Logical rows and columns of one matrix as its scales have them: [out, in]; None where the matrix is stored in
    words or the other way round, so that scales are laid out in ways of their own."""
    stored, dtype = module.family.shape, module.family.dtype
    if module.group.pattern.endswith(".qweight") or not stored[-2] or not stored[-1]:
        return None
    matrices = module.family.count
    for size in stored[:-2]:
        matrices *= size
    each = module.family.parameters // matrices if matrices else 0
    rows = stored[-2]
    if len(stored) > 3 or not each or each % rows or (dtype in ("I32", "I64") and len(stored) > 2):
        return None
    return rows, each // rows


def _expected(block: tuple[int, int], extents: tuple[int, int]) -> Shape:
    return tuple(-(-extent // size) if size else 1 for extent, size in zip(extents, block, strict=True))


def _against_blocks(module: Module, scale: TensorGroup, form: Format, extents: tuple[int, int]) -> Iterator[Finding]:
    lead = module.family.shape[:-2]
    if form.block is None or scale.shape[:len(lead)] != lead or len(scale.shape) != len(lead) + 2:
        return  # one scale for all, or in each row; or laid out in a way of its own
    found, wanted = scale.shape[len(lead):], _expected(form.block, extents)
    turned = len(lead) > 0 and found == _expected((form.block[1], form.block[0]), extents)
    by_row = form.block[0] > 1 and found in ((1, 1), (extents[0], 1))
    if found == wanted or turned or by_row or _fused(module, found, wanted):
        return
    subject = scale.pattern if scale.count > 1 else scale.name(0)
    file, expected = [*lead, *found], [*lead, *wanted]
    yield Finding(
        rule="scale-shape", severity="error", subject=subject,
        message=f"{subject} is {file}, but a weight of {list(extents)} in blocks of {list(form.block)} has {expected}",
        hint="round up when the scales are written, or correct the block size in the config",
        facts={"file": file, "expected": expected, "block": list(form.block)})


def _fused(module: Module, found: Shape, wanted: Shape) -> bool:
    """Whether the rows of a fused matrix have a few scales more, for the parts have a last block each."""
    several = module.role.rpartition(".")[2] in _FUSED
    return several and found[1] == wanted[1] and wanted[0] <= found[0] <= wanted[0] + MOST_PARTS


def _block_of(case: Case, module: Module, form: Format | None, extents: tuple[int, int]) -> tuple[int, int] | None:
    """Rows and columns of a block: as stated, or as the scales show."""
    if form and form.block and agrees(form.scheme, module.family, form):
        return form.block
    for scale in _scales_of(case, module):
        if len(scale.shape) >= 2 and all(scale.shape[-2:]):
            sizes = [_power(extent, count) for extent, count in zip(extents, scale.shape[-2:], strict=True)]
            return sizes[0], sizes[1]
    return None


def _power(extent: int, count: int) -> int:
    """The power of two that gives so many blocks; 0: one for the whole axis."""
    if count <= 1:
        return 0
    size = 1 << (-(-extent // count) - 1).bit_length()
    return size if -(-extent // size) == count else 1


def _allocated(case: Case, module: Module, block: tuple[int, int], extents: tuple[int, int]) -> Iterator[Finding]:
    """What an engine that rounds down allocates for the shares of each layout (whole, if there is none)."""
    if is_mtp(module.family, case.model) and case.target.engine.facts.speculative != "mtp":
        return
    for layout in case.target.layouts or (Layout(),):
        axis, parts = _cut(case, module.family, layout)
        for number, (extent, size) in enumerate(zip(extents, block, strict=True)):
            share = extent // parts if number == axis and extent % parts == 0 else extent
            if size > 1 and share % size:
                subject = _scale_name(case, module)
                yield Finding(
                    rule="scale-shape", severity="error", subject=subject,
                    message=f"{layout.text}: a rank's {share} {'columns' if number else 'rows'} of {module.stem} have "
                            f"{-(-share // size)} blocks of {size}, the engine allocates {share // size}",
                    hint="the engine has to round up when it allocates scales; or take another tp",
                    facts={"allocated": share // size, "expected": -(-share // size), "local": share, "block": size,
                           "layout": layout.text})


def _scale_name(case: Case, module: Module) -> str:
    scale = next(iter(_scales_of(case, module)), module.group)
    return scale.pattern if scale.count > 1 else scale.name(0)


def _cut(case: Case, family: WeightFamily, layout: Layout) -> tuple[int | None, int]:
    """(axis of [out, in] that is cut, in how many parts)."""
    if family.role.split(".")[0] in ("vision", "audio", "projector"):
        axis = _tower_axis(family) if case.target.engine.vision == "split" else None
        return axis, layout.tp if axis is not None else 1
    if family.axis is None:
        return None, 1
    return family.axis - (len(family.shape) - 2), ways(family, case.model, layout)


def _tower_axis(family: WeightFamily) -> int | None:
    """The axis along which a matrix of a tower would be cut like one of the decoder: by the last word of its name."""
    words = vocabulary()
    names = family.pattern.split(".")
    leaf = names[-2] if names[-1].startswith("weight") and len(names) > 1 else names[-1]
    for matrix in words.feed_forward.matrices.values():
        if leaf in matrix.words:
            return matrix.axis
    parents = set(names[:-2])
    for role in words.roles:
        if leaf in role.words and role.axis is not None and (not role.within or parents.intersection(role.within)):
            return role.axis
    return 1 if leaf == "proj" and parents.intersection(("attn", "attention", "self_attn")) else None
