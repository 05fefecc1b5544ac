"""Where a rank stands in a layout, and which layouts can be run. Without torch.

Replicas (dp) are outermost, then pipeline stages, then the tp ranks of a stage. Experts are dealt out to the ranks of a
stage, and if there are more parts of them than tp ranks (ep > tp), over several replicas, which then work in step.
"""

from __future__ import annotations

from dataclasses import dataclass

from dayzero.schema import Layout, ModelSpec

from .assignment import DTYPES


def refusal(layout: Layout) -> str:
    """Why a layout cannot be run; empty when it can, if the model's dimensions allow it."""
    if layout.cp > 1:
        return f"there is no context parallelism (cp={layout.cp})"
    if layout.attention_degree != layout.tp:
        return f"attention is split over all tp ranks (attention_tp={layout.attention_tp})"
    if layout.ep % layout.tp and layout.tp % layout.ep:
        return f"ep={layout.ep} is neither a part nor a multiple of tp={layout.tp}"
    return ""


def indivisible(model: ModelSpec, layout: Layout) -> str:
    """Why the model has not enough of something to be shared out so; empty when its dimensions do not tell, and only
    ranks that have built it can."""
    if layout.pp > len(model.layers):
        return f"{len(model.layers)} layers cannot be shared out to {layout.pp} stages"
    families = [each for each in model.families if not each.role.startswith("unused.")]
    for experts in sorted({each.experts for each in families if each.experts % layout.ep}):
        return f"{experts} experts cannot be dealt out evenly to {layout.ep} groups"
    plain = all(each.scheme in DTYPES for each in families)  # stored dimensions of packed values are not the model's
    if plain and families and layout.ep == 1 and all(size % layout.tp for each in families for size in each.shape):
        return (f"no weight of this model can be shared by {layout.tp} ranks: no dimension is a multiple of "
                f"{layout.tp}")
    return ""


@dataclass(frozen=True)
class Place:
    """One rank's place."""

    layout: Layout
    rank: int
    """Global rank."""

    @property
    def replica(self) -> int:
        """Which replica it belongs to."""
        return self.rank // (self.layout.tp * self.layout.pp)

    @property
    def stage(self) -> int:
        """Pipeline stage."""
        return self.rank % (self.layout.tp * self.layout.pp) // self.layout.tp

    @property
    def index(self) -> int:
        """Among the tp ranks of its stage."""
        return self.rank % self.layout.tp

    @property
    def expert(self) -> int:
        """Which of the ep parts of the experts it holds."""
        return (self.replica * self.layout.tp + self.index) // self.layout.expert_tp % self.layout.ep

    @property
    def width(self) -> int:
        """Which of the expert_tp parts of their width."""
        return self.index % self.layout.expert_tp

    @property
    def block(self) -> int:
        """Replicas that share experts have the same number."""
        return self.replica // self.together

    @property
    def together(self) -> int:
        """How many replicas share experts."""
        return max(1, self.layout.ep // self.layout.tp)

    @property
    def first_of_tp(self) -> bool:
        """Whether it speaks for its tp group, whose ranks all hold the same activations."""
        return self.index == 0

    @property
    def speaks(self) -> bool:
        """Whether it speaks for its replica."""
        return self.stage == 0 and self.index == 0
