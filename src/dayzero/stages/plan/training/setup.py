"""How one model is trained: the layout, the batch, the precision, and what is kept, recomputed and sharded.

Ranks are numbered with tp innermost, then cp and the rest of dp, then pp outermost. `Layout.cp` ranks, out of the dp
ones, share one sequence; `Layout.dp` counts all ranks that hold the same weights.
"""

from __future__ import annotations

from typing import Literal

from dayzero.errors import LayoutError
from dayzero.schema import Layout, Noun

Recompute = Literal["none", "selective", "full"]
Schedule = Literal["1f1b", "zero-bubble"]


class Setup(Noun, frozen=True, kw_only=True):
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
    written, and norms and activations where it is fused; or the layer."""
    zero: int = 1
    """What data-parallel ranks share: 0 nothing, 1 optimiser states, 2 gradients too, 3 weights too."""
    virtual: int = 1
    """Chunks of layers that each stage holds (interleaved pipeline); 1: one."""
    schedule: Schedule = "1f1b"
    """Order of the micro-batches; with `virtual` above 1 interleaved."""
    sequence_parallel: bool = True
    """Whether tp ranks share what lies between products along the sequence (all-gather and reduce-scatter)."""
    fused_attention: bool = True
    """Whether scores stay on the chip; else they are written and read, with dropout, as before fused kernels."""
    frozen: bool = False
    """Whether only small adapters learn: no gradients of the weights."""
    gradient_bytes: int = 4
    """Of one gradient, while it is summed over micro-batches and replicas."""
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
    def replicas(self) -> int:
        """Groups of ranks that work on sequences of their own."""
        return self.layout.dp // self.layout.cp

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a replica in one step."""
        return self.global_batch // (self.micro_batch * self.replicas)

    @property
    def rows(self) -> float:
        """Tokens of a micro-batch on one rank of the cp group."""
        return self.micro_batch * self.sequence / self.layout.cp

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.sequence

    @property
    def spread(self) -> float:
        """Parts that tp cuts what lies between products into."""
        return self.layout.tp if self.sequence_parallel else 1
