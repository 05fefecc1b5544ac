"""Breaks that can be told without running anything."""

from __future__ import annotations

from collections.abc import Iterator

from dayzero.data.breaks import Values, breaks
from dayzero.schema import ControlFlow, Noun, OpGraph, Release
from dayzero.stages.trace.support import OURS, in_model_file

from .sources import Source, sources
from .syntax import branches_at, side_effects


class Break(Noun, frozen=True, kw_only=True):
    """One place or operator that stops graph capture, or changes what the code does."""

    kind: str
    """Kind of control flow, of call, or: shapes, kernel, state, loop."""
    place: str
    """`file:line`, an operator, or a call to a library."""
    what: str
    """What happens there."""
    compile: str
    """What torch.compile does."""
    export: str
    """What torch.export does."""
    certain: bool
    """True: it ran while tracing; False: it stands in source that may not run."""


def foreseen(graph: OpGraph, release: Release | None) -> tuple[Break, ...]:
    """All of them, those that make an export fail first. Without a release no source is searched for side effects."""
    files = sources(graph, release) if release is not None else ()
    found = [*_values(graph, files), *_operators(graph), *_stand_ins(graph), *_effects(files, graph)]
    return tuple(sorted(dict.fromkeys(found), key=lambda each: (not each.certain, not each.export.startswith("fails"))))


def _values(graph: OpGraph, files: tuple[Source, ...]) -> Iterator[Break]:
    """Places that ask for the value of a tensor; whether the answer decides the way is seen in the source."""
    known = {kind: values for values in breaks().values for kind in values.kinds}
    texts = {source.name: source.text for source in files}
    for site in graph.control_flow:
        values = known.get(site.kind) or Values(
            kinds=(), what="the value of a tensor is asked for", compile="graph break", export="unknown value",
            branch="fails")
        decides = branches_at(texts.get(_matching(site, texts), ""), site.line)
        yield Break(kind=site.kind, place=f"{site.file}:{site.line}", certain=site.executed, compile=values.compile,
                    what=values.what + (", and decides which way the code goes" if decides else ""),
                    export=values.branch if decides else values.export)


def _matching(site: ControlFlow, texts: dict[str, str]) -> str:
    """The source of that name; a release's own file may be known by its last part only."""
    last = site.file.rpartition("/")[2]
    return site.file if site.file in texts else last if last in texts else ""


def _operators(graph: OpGraph) -> Iterator[Break]:
    """Operators whose result's shape torch cannot tell without running them."""
    for entry in graph.missing:
        if "no shape rule" in entry:
            yield Break(kind="shapes", place=entry.partition(" ")[0], certain=True, compile="fails", export="fails",
                        what="the operator has no rule for the shape of its result")
    custom = dict.fromkeys(call.op for call in graph.operators if not call.op.startswith(("aten.", f"{OURS}.")))
    for op in custom:
        ruled = _has_shape_rule(op)
        why = "not registered in this torch" if ruled is None else "without a rule for the shape of its result"
        if not ruled:
            yield Break(kind="shapes", place=op, what=f"a custom operator, {why}", certain=True, compile="fails",
                        export="fails")


def _has_shape_rule(op: str) -> bool | None:
    """Whether an operator has a fake or meta kernel; None: there is no such operator, or no torch."""
    try:
        import torch
        from torch._library.simple_registry import singleton
    except ImportError:
        return None
    from dayzero.backends.dispatch import overloads

    found = overloads(op)
    if not found:
        return None
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has(each.name, key) for each in found for key in ("Meta", "CompositeImplicitAutograd")) or any(
        singleton.find(each.name).fake_impl.kernel is not None for each in found)


def _stand_ins(graph: OpGraph) -> Iterator[Break]:
    """Kernels of libraries, and loops of the model's own file, that were traced as one operator."""
    for each in graph.stand_ins:
        if in_model_file(each.call):
            yield Break(kind="loop", place=each.call, certain=True, what=f"a loop that the trace shows as {each.op}",
                        compile="unrolled, again for each length", export="unrolled for one length")
        else:
            yield Break(kind="kernel", place=each.call, certain=True,
                        what=f"a kernel library computes {each.op}: seen only if it is registered as an operator",
                        compile="graph break unless registered", export="fails unless registered")


def _effects(files: tuple[Source, ...], graph: OpGraph) -> Iterator[Break]:
    classes = {node.type for node in graph.modules}
    for source in files:
        for effect in side_effects(source.text, classes):
            yield Break(kind=effect.kind, place=f"{source.name}:{effect.line}", what=effect.what, certain=False,
                        compile=effect.compile, export=effect.export)
