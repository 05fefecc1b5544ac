"""What every member is told when it starts. Plain data, without torch."""

from __future__ import annotations

import msgspec

from dayzero.backends import Chosen
from dayzero.schema import Budget

TIMELINES = "timeline-*.json"
"""Files of members in the folder: what they did when, one for each place that they had."""
_NOBODY = Chosen()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What every member reads when it starts: job.json in the folder."""

    root: str
    """Folder of the release."""
    dtype: str = "f32"
    """Of the weights: bf16, f16 or f32."""
    backend: str = "cpu"
    """Kind of device that ranks compute on."""
    chosen: Chosen = _NOBODY
    """Which attention, norms and cache they use."""
    threads: int = 1
    """Of a member."""
    timeout_s: float = 60.0
    """After which a collective is given up, should nothing else tell that a peer is gone."""
    ends: tuple[int, ...] | None = None
    """Token ids that end an answer; None: those that the release states."""
    stages: dict[str, tuple[tuple[int, int], ...]] = {}
    """Text of a layout -> [first layer, end) of each stage; of others they are as even as can be."""
    budgets: tuple[Budget, ...] = ()
    """What weights may take: of each rank, or one for all of them; empty: no limit."""
    own: bool = False
    """Whether the release's own code is to run."""
    partial: bool = False
    """Whether a release of which only the first layers are here is to be run as a model of those."""
    verify: bool = False
    """Whether weight files are compared with their stated digests while they are read."""
    timeline: bool = False
    """Whether members write what they did when."""

    def budget(self, rank: int) -> Budget | None:
        """What the weights of a rank may take; None: no limit. In another layout than was planned all have that of
        the first."""
        if not self.budgets:
            return None
        return self.budgets[rank if rank < len(self.budgets) else 0]
