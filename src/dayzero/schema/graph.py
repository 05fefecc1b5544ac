"""OpGraph: the operators that the model's own code runs, with shapes, for each phase."""

from __future__ import annotations

from typing import Literal

import msgspec

from .base import Noun

PhaseName = Literal["prefill", "decode", "towers"]


OWN = "the release's own"
"""How the `source` of a graph begins for which the release's own code ran."""


class Phase(Noun, frozen=True, kw_only=True):
    """One traced run of the model and what it came to."""

    name: PhaseName
    """prefill: `tokens` new tokens each; decode: one new token each against a cache of `context` tokens; towers: what
    turns images or sound into tokens, on one input each that has `tokens` rows."""
    batch: int
    """Sequences."""
    tokens: int
    """New tokens of each sequence."""
    context: int
    """Tokens of each sequence already in the cache."""
    flops: int
    """Floating-point operations; a multiply-add counts two."""
    bytes: int
    """Bytes that the operators read and write, each counted by itself (no fusion)."""
    operators: int
    """Operator calls."""


class OpCall(Noun, frozen=True, kw_only=True):
    """One operator call, or `count` equal ones of the same module."""

    op: str
    """Operator, such as aten.mm."""
    module: str
    """Dotted path of the innermost module that was running, `*` for the numbers of modules that are alike inside a
    layer (experts); empty: the model itself."""
    module_type: str
    """Class name of that module."""
    kind: str
    """What an engineer calls it: linear, attention, norm, rotary, router, experts, embedding, elementwise, copy ..."""
    count: int
    """How often, with these shapes, in this module and phase."""
    inputs: tuple[tuple[int, ...], ...]
    """Shapes of the tensor arguments."""
    outputs: tuple[tuple[int, ...], ...]
    """Shapes of the tensor results."""
    dtype: str
    """dtype of the first tensor argument, such as bf16."""
    flops: int
    """Of all `count` calls together."""
    bytes: int
    """Read and written by all `count` calls together."""
    phase: PhaseName
    """The phase it belongs to."""

    @property
    def shapes(self) -> str:
        """Shapes in and out: `64x576, 1536x576 -> 64x1536`."""
        sides = (", ".join("x".join(map(str, shape)) or "scalar" for shape in side)
                 for side in (self.inputs, self.outputs))
        return " -> ".join(sides)


Length = int | float | str
"""Length of an axis: a number, or an expression."""


class Operation(Noun, frozen=True, kw_only=True):
    """What an engineer calls one operator: the calls of one module that belong together, in every layer that is alike.

    Its axes are numbers where the model fixes them, and expressions in `batch`, `tokens` (new ones of each sequence)
    and `context` (tokens of each sequence in the cache) where the workload does: the operator's definition gives flops
    and bytes for any other workload or shard. Axes and calls are in the order of their names, and whole numbers are
    integers: an operation that was made is written and shown as one that was read.
    """

    op: str
    """Name in the registry of operators: linear, attention, experts, norm ..."""
    variant: str = ""
    """Which one: an attention's kind, `rms` of a norm, `head` of a linear ...; empty: there is one only."""
    module: str
    """Dotted path of the module, `{L}` for the number of the layer, `*` for other numbers; empty: the model itself."""
    layers: tuple[int, ...] = ()
    """Layers that have it; empty: it is in none."""
    phase: PhaseName
    """The phase it belongs to."""
    count: int
    """How often it runs in the phase, all layers together."""
    axes: dict[str, Length]
    """Axis of the definition -> its length of one run."""
    dtype: str
    """dtype of the activations, such as bf16."""
    flops: int
    """By the definition, at the traced workload, all runs together."""
    bytes: int
    """By the definition, likewise: what must move at least once."""
    counted_flops: int
    """Of the calls that it consists of."""
    counted_bytes: int
    """Of the calls that it consists of: each reads and writes for itself."""
    calls: dict[str, int]
    """Operator calls that it consists of, by name; empty: there was no code to run."""
    exact: bool = True
    """Whether the expressions give the traced shapes at every workload that was tried."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "axes", {name: _plain(self.axes[name]) for name in sorted(self.axes)})
        msgspec.structs.force_setattr(self, "calls", {name: self.calls[name] for name in sorted(self.calls)})


def _plain(length: Length) -> Length:
    return int(length) if isinstance(length, float) and length.is_integer() else length


class StandIn(Noun, frozen=True, kw_only=True):
    """A function of a kernel library that needs another machine, and what took its place."""

    call: str
    """Dotted name that the code imports."""
    op: str
    """Operator that it was mapped to."""
    times: int
    """How often it was called."""


class ControlFlow(Noun, frozen=True, kw_only=True):
    """A place where the code asks for the value of a tensor."""

    file: str
    """Source file, below its package."""
    line: int
    """Line in that file."""
    kind: str
    """item, nonzero, equal ..."""
    assumed: str
    """The answer it was given."""
    times: int
    """How often it was asked."""
    executed: bool
    """True: seen while running; False: seen in the source only."""


class ModuleNode(Noun, frozen=True, kw_only=True):
    """One module of the model: the call tree in pre-order."""

    path: str
    """Dotted path; empty for the model itself."""
    type: str
    """Class name."""
    parameters: int
    """Parameters that the module owns itself, without its children; of all `count` together."""
    count: int = 1
    """Modules of this path: `*` in it stands for the numbers of modules that are alike."""


class LayerKind(Noun, frozen=True, kw_only=True):
    """Layers that have the same structure."""

    kind: str
    """Name made of the kinds of attention and feed-forward."""
    layers: tuple[int, ...]
    """Their indices."""
    traced: tuple[int, ...] = ()
    """Those that ran; the others are known to run the same calls. Empty: all of them ran."""
    proof: str = ""
    """Why the others are known to: what was compared and found equal."""


class OpGraph(Noun, frozen=True, kw_only=True):
    """All operators of the traced phases."""

    parameters: int
    """Parameters that the code declares, tied ones once."""
    seconds: float
    """What the trace took."""
    phases: dict[str, Phase]
    """Totals of each phase, by name."""
    operators: tuple[OpCall, ...]
    """In the order in which they were first called."""
    modules: tuple[ModuleNode, ...]
    """The module tree."""
    control_flow: tuple[ControlFlow, ...]
    """Where the code asks for the value of a tensor."""
    missing: tuple[str, ...]
    """Calls that could not be traced."""
    layer_kinds: tuple[LayerKind, ...]
    """Which layers are alike."""
    source: str
    """What was traced: the library's class or the release's own code, and its version."""
    operations: tuple[Operation, ...] = ()
    """The same, grouped to what an engineer names, with axes that hold for any workload."""
    stand_ins: tuple[StandIn, ...] = ()
    """What took the place of kernel libraries."""
    supplied: tuple[str, ...] = ()
    """Names that the code imports and the installed library no longer has, and what was given for them."""
    isolation: tuple[str, ...] = ()
    """Limits of the process in which the code ran; empty: it ran in none of its own, or there was none."""

    @property
    def own(self) -> bool:
        """Whether the release's own code ran, not the library's."""
        return self.source.startswith(OWN)

    @property
    def ran(self) -> bool:
        """Whether code ran, and the operators are its calls; else its operations follow from definitions."""
        return bool(self.operators) or not self.operations

    def grouped(self) -> tuple[OpCall, ...]:
        """`operators`, with equal calls of different modules (the same projection of each layer) as one: its module
        has `*` for each number."""
        merged: dict[tuple[object, ...], OpCall] = {}
        for call in self.operators:
            module = ".".join("*" if part.isdigit() else part for part in call.module.split("."))
            key = (call.phase, module, call.op, call.kind, call.inputs, call.outputs, call.dtype)
            before = merged.get(key)
            merged[key] = msgspec.structs.replace(
                call, module=module, count=call.count + (before.count if before else 0),
                flops=call.flops + (before.flops if before else 0), bytes=call.bytes + (before.bytes if before else 0))
        return tuple(merged.values())
