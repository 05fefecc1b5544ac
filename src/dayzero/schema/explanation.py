"""What a plan says beside its list of layouts: the trade-offs, how near the limits are, what was refused and why, what
would change with the hardware, and the smallest cluster that works."""

from __future__ import annotations

from typing import Literal

from .base import Noun
from .layout import Layout


class Point(Noun, frozen=True, kw_only=True):
    """One layout at one load that no other layout and load beats in throughput per device and latency at once."""

    layout: Layout
    """The degrees."""
    concurrency: int
    """Sequences that are served together."""
    ttft_s: float
    """Seconds to the first token."""
    tpot_s: float
    """Seconds for each further token."""
    tokens_per_s_per_device: float
    """Output tokens a second of one device."""
    best_for: tuple[str, ...]
    """Of `tpot` and `ttft` those against which throughput is traded without being beaten."""
    within: bool
    """Whether it meets all limits of the target."""

    @property
    def tokens_per_s_per_user(self) -> float:
        """What one client sees: output tokens a second."""
        return 1 / self.tpot_s


class Bound(Noun, frozen=True, kw_only=True):
    """One limit of the target, and how near the layouts come to it."""

    figure: Literal["ttft_s", "tpot_s", "devices"]
    """What is limited."""
    limit: float
    """The most that it may be."""
    met_by: int
    """Layouts with room for the workload that meet it."""
    nearest: float | None
    """The smallest that any of them reaches; None: none has room."""
    layout: Layout | None
    """The layout that reaches it."""


class Family(Noun, frozen=True, kw_only=True):
    """Layouts that break one rule for one reason."""

    degrees: dict[str, int]
    """What they have in common, and what alone decides; empty: it takes more than their degrees to tell."""
    rule: str
    """Name of the rule."""
    message: str
    """What is the case."""
    layouts: int
    """How many there are."""
    example: Layout
    """One of them."""

    @property
    def text(self) -> str:
        """`tp=24`, or the example where no degree decides."""
        return " ".join(f"{name}={degree}" for name, degree in self.degrees.items()) or self.example.text


class Change(Noun, frozen=True, kw_only=True):
    """What other hardware would do: one rate times a factor."""

    resource: str
    """memory bandwidth, link bandwidth or matrix rate."""
    factor: float
    """Of the stated rate."""
    before: dict[str, float]
    """Figures of the first layout as it is: tpot_s, ttft_s and tokens_per_s, or step_s and tokens_per_s."""
    after: dict[str, float]
    """The same with the changed rate; none where it does not keep up with the requests that arrive."""
    first: Layout
    """The layout that ranks first then."""
    lead: float
    """By how much that one is then ahead of the one that ranks first now, as a share of its throughput; 0: it is the
    same one; below 0: the one that ranks first now breaks a limit then."""

    @property
    def turns(self) -> str:
        """What becomes of the ranking."""
        if not self.after:
            return f"the first does not keep up; {self.first.text}" if self.lead else "none keeps up"
        if not self.lead:
            return "the same"
        return f"{self.first.text}, " + (f"{self.lead:.0%} ahead" if self.lead > 0 else "for a limit is broken")


class Size(Noun, frozen=True, kw_only=True):
    """The smallest cluster of the target's devices on which a layout works; or that none was found."""

    works: Literal["fits", "within limits"]
    """What the layout does there."""
    nodes: int
    """Nodes."""
    devices_per_node: int
    """Devices in each."""
    layout: Layout | None
    """The best layout there; None: up to this size there is none."""
    figures: dict[str, float]
    """tpot_s, ttft_s and tokens_per_s, or step_s and tokens_per_s."""
    reason: str = ""
    """What is in the way where there is none."""

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.nodes * self.devices_per_node
