"""How one model is trained: the layout, the batch, the precision, and what is kept, recomputed, shared and moved away.

Ranks are numbered with tp innermost, then cp and the rest of dp, then pp outermost. `Layout.cp` ranks, out of the dp
ones, share one sequence; `Layout.dp` counts all ranks that hold the same weights. A `Setup` is one way to train, `Ways`
are many, as columns; what follows from them has the same names, and is a number or an array.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from dayzero.arrays import Value, choose
from dayzero.errors import LayoutError
from dayzero.placement.many import Layouts
from dayzero.schema import Layout, Noun

Recompute = Literal["none", "selective", "products", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "products", "full")
"""What backward computes again, least first; `redo` is the place in here."""
NONE, SELECTIVE, PRODUCTS, FULL = range(4)
Schedule = Literal["1f1b", "zero-bubble"]
Offload = Literal["none", "optimiser", "gradients", "weights"]
OFFLOAD: tuple[Offload, ...] = ("none", "optimiser", "gradients", "weights")
"""What lies in the host's memory, each with those before it; `away` is the place in here."""
COLUMNS = ("micro_batch", "zero", "virtual", "redo", "zero_bubble", "sequence_parallel", "away")
"""What `Ways` has an array of, beside the layouts."""


class _Derived:
    """What follows from how a model is trained, one way or many."""

    __slots__ = ()
    layout: Any
    sequence: int
    global_batch: int
    micro_batch: Any
    sequence_parallel: Any

    @property
    def replicas(self) -> Value:
        """Groups of ranks that work on sequences of their own."""
        return self.layout.dp // self.layout.cp

    @property
    def micro_batches(self) -> Value:
        """Micro-batches of a replica in one step."""
        return self.global_batch // (self.micro_batch * self.replicas)

    @property
    def rows(self) -> Value:
        """Tokens of a micro-batch on one rank of the cp group."""
        return self.micro_batch * self.sequence / self.layout.cp

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.sequence

    @property
    def spread(self) -> Value:
        """Parts that tp cuts what lies between products into."""
        return choose(self.sequence_parallel, self.layout.tp, 1)


class Setup(Noun, _Derived, frozen=True, kw_only=True):
    """One way to train a model. Raises LayoutError for a batch that the replicas cannot share."""

    layout: Layout
    """Degrees; with cp above 1 groups of cp of the dp ranks share one sequence."""
    sequence: int
    """Tokens of a sequence."""
    micro_batch: int
    """Sequences of one micro-batch of a replica."""
    global_batch: int
    """Sequences of a step."""
    scheme: str = "bf16"
    """Precision of the matrix products, such as bf16, f16, fp8, mxfp8 or nvfp4."""
    recompute: Recompute = "none"
    """What backward computes again: nothing; what costs little, which is the core of attention where scores are
    written, and norms and activations where it is fused; every second product too; or the layer."""
    zero: int = 1
    """What data-parallel ranks share: 0 nothing, 1 optimiser states, 2 gradients too, 3 weights too (as FSDP does)."""
    virtual: int = 1
    """Chunks of layers that each stage holds (interleaved pipeline); 1: one."""
    schedule: Schedule = "1f1b"
    """Order of the micro-batches; with `virtual` above 1 interleaved."""
    offload: Offload = "none"
    """What lies in the host's memory; each with those before it: none, optimiser, gradients, weights."""
    sequence_parallel: bool = True
    """Whether tp ranks share what lies between products along the sequence (all-gather and reduce-scatter)."""
    fused_attention: bool = True
    """Whether scores stay on the chip; else they are written and read, with dropout, as before fused kernels."""
    frozen: bool = False
    """Whether only small adapters learn: no gradients of the weights."""
    gradient_bytes: int = 4
    """Of one gradient, while it is summed over micro-batches and replicas."""
    optimiser_bytes: int = 12
    """Of what the optimiser keeps for a parameter: master weight and two moments in 32 bits."""
    logit_bytes: int = 14
    """Of one logit: in 16 bits, the loss's logarithm of its share in 32, and two gradients of 32; less where a kernel
    fuses them."""
    grouped: bool = True
    """Whether the experts of a rank are multiplied in one fused kernel; older stacks start one for each."""
    drafts: bool = True
    """Whether the multi-token-prediction layers of the model are trained along."""

    def __post_init__(self) -> None:
        if self.layout.dp % self.layout.cp:
            raise LayoutError(f"cp={self.layout.cp} does not divide dp={self.layout.dp}", "take a cp that divides dp")
        share = self.micro_batch * self.replicas
        if self.global_batch % share:
            raise LayoutError(f"{self.replicas} replicas with micro-batches of {self.micro_batch} cannot share a batch "
                              f"of {self.global_batch} sequences", f"take a batch that is a multiple of {share}")

    @property
    def redo(self) -> int:
        """Place of `recompute` in RECOMPUTE."""
        return RECOMPUTE.index(self.recompute)

    @property
    def away(self) -> int:
        """Place of `offload` in OFFLOAD."""
        return OFFLOAD.index(self.offload)

    @property
    def zero_bubble(self) -> bool:
        """Whether the gaps of the pipeline are filled with the weights' gradients."""
        return self.schedule == "zero-bubble"


@dataclass(frozen=True, eq=False)
class Ways(_Derived):
    """Many ways to train one model with one batch: arrays of one length, and what is the same for all."""

    layout: Layouts
    """Degrees."""
    micro_batch: Value
    """See Setup."""
    zero: Value
    """See Setup."""
    virtual: Value
    """See Setup."""
    redo: Value
    """Places of `recompute` in RECOMPUTE."""
    zero_bubble: Value
    """Whether the schedule is zero-bubble."""
    sequence_parallel: Value
    """See Setup."""
    away: Value
    """Places of `offload` in OFFLOAD."""
    sequence: int
    """See Setup."""
    global_batch: int
    """See Setup."""
    scheme: str
    """See Setup."""
    fused_attention: bool = True
    """See Setup."""
    frozen: bool = False
    """See Setup."""
    gradient_bytes: int = 4
    """See Setup."""
    optimiser_bytes: int = 12
    """See Setup."""
    logit_bytes: int = 14
    """See Setup."""
    grouped: bool = True
    """See Setup."""

    def take(self, index: Value) -> Ways:
        """Those at the positions of an array, or where an array of truths holds."""
        columns: dict[str, Any] = {name: getattr(self, name)[index] for name in COLUMNS}
        return self.changed(layout=self.layout.take(index), **columns)

    def changed(self, **columns: Value) -> Ways:
        """The same with other columns."""
        own = {name: getattr(self, name) for name in ("layout", *COLUMNS)}
        return Ways(**(own | columns), **self._common())

    @classmethod
    def joined(cls, parts: Iterable[Ways]) -> Ways:
        """One after another; what is the same for all is that of the first."""
        every = list(parts)
        layouts = Layouts(*(np.concatenate([getattr(one.layout, field.name) for one in every])
                            for field in fields(Layouts)))
        columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in every]) for name in COLUMNS}
        return cls(layout=layouts, **columns, **every[0]._common())

    def _common(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)
                if field.name not in (*COLUMNS, "layout")}

    def __len__(self) -> int:
        return len(self.layout)

    def __getitem__(self, position: int) -> Setup:
        return Setup(
            layout=self.layout[position], recompute=RECOMPUTE[int(self.redo[position])],
            offload=OFFLOAD[int(self.away[position])], zero=int(self.zero[position]),
            micro_batch=int(self.micro_batch[position]), virtual=int(self.virtual[position]),
            schedule="zero-bubble" if self.zero_bubble[position] else "1f1b",
            sequence_parallel=bool(self.sequence_parallel[position]), **self._common())
