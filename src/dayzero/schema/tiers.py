"""Weights in tiers: what they may take (Budget), what keeping them in lower tiers cost a rank and could not have cost
less than (TierRecord), and the same of all ranks together (TierTotal)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dayzero.units import format_bytes

from .base import Noun
from .layout import Layout

KEEPS = ("values", "stored")
"""How weights may be kept: as the values that are computed with, or as they are stored in the files, quantised."""


class Budget(Noun, frozen=True, kw_only=True):
    """What one rank's weights may take; what has no room stays in the files."""

    device: int | None = None
    """Bytes on a device other than the host; None: no limit."""
    host: int | None = None
    """Bytes of the host; None: no limit."""
    weights: bool = False
    """Whether these are bytes of weights alone, as in a plan; else of all that the rank takes there."""
    keep: str = "values"
    """values or stored: how weights are kept where they lie; `stored` ones are decoded when they are needed."""

    @property
    def limited(self) -> bool:
        """Whether any weights may not simply be held as values."""
        return self.device is not None or self.host is not None or self.keep != KEEPS[0]


class TierRecord(Noun, frozen=True, kw_only=True):
    """Of one rank, since its counts were last reset; bytes and seconds of all passes together."""

    passes: int
    """Forward passes."""
    kept: dict[str, int]
    """Bytes in memory by what they are for: layers, staging, head, table, experts, stored (as
    it is in the files)."""
    slots: int
    """Experts that have room at a time."""
    experts: int
    """Experts that the rank has."""
    policy: str
    """Which expert makes room for another."""
    foresight: str
    """How experts are foreseen, in the end: router (the next layer's router on this layer's input), last (those of the
    last token), or none."""
    hits: int
    """Units (experts, layers, blocks of the head) that were there when they were needed."""
    late: int
    """Units whose read ahead was not over when they were needed."""
    misses: int
    """Units that nobody had read ahead."""
    ahead: int
    """Units read ahead."""
    useful: int
    """Of these, the ones that were needed."""
    needed_bytes: int
    """That the passes needed, as they are in the files."""
    fresh_bytes: int
    """Of these, what was not there as values that can be computed with."""
    stored_bytes: int = 0
    """Of these, what was in memory as it is stored, and was decoded or sent over."""
    read_bytes: int
    """That were read from the files."""
    stall_s: float
    """Waited for reads."""
    seconds: float
    """In passes."""
    bandwidth: float | None
    """Bytes a second that reads of single experts reached, with nothing else going on; None: not measured."""
    source: str
    """Where reads come from: disk, or the system's page cache."""
    repaired: int = 0
    """Reads that were what was verified the second time only."""

    @property
    def hit(self) -> float:
        """Share of the needed bytes that were in memory already, 0 to 1."""
        return 1 - (self.fresh_bytes - self.stored_bytes) / self.needed_bytes if self.needed_bytes else 1.0

    @property
    def bound_s(self) -> float | None:
        """Least seconds for each pass: (1 - hit) x needed bytes for each pass / bandwidth."""
        if not self.bandwidth or not self.passes:
            return None
        return (1 - self.hit) * self.needed_bytes / self.passes / self.bandwidth

    @property
    def reached(self) -> float | None:
        """Share of the bound that was reached: its seconds over those of a pass."""
        bound = self.bound_s
        return None if bound is None or not self.seconds else bound * self.passes / self.seconds

    @property
    def accuracy(self) -> float | None:
        """Share of what was read ahead that was needed."""
        return self.useful / self.ahead if self.ahead else None

    @property
    def told(self) -> str:
        """In a few words."""
        bound = "" if self.bound_s is None else f", at least {self.bound_s:.3g} s a pass"
        again = f", {self.repaired} reads were right the second time only" if self.repaired else ""
        return (f"weights in tiers: {self.hit:.0%} of the bytes needed were there, {format_bytes(self.read_bytes)} "
                f"read in {self.passes} passes, {self.stall_s:.1f} of {self.seconds:.1f} s waited for reads"
                f"{bound}{again}")


class TierTotal(Noun, frozen=True, kw_only=True):
    """Of all ranks of a layout, for each pass of a replica: ranks of a stage work at the same time, stages after one
    another, replicas are averaged."""

    hit: float
    """Share of the needed bytes that were in memory already, 0 to 1."""
    needed_bytes: float
    """That a pass needs of what may lie in lower tiers, on all ranks of a replica."""
    read_bytes: float
    """That were read from the files for it."""
    stored_bytes: float
    """That were in memory as they are stored."""
    stall_s: float
    """Waited for reads, by the slowest rank of each stage."""
    seconds: float
    """In the pass, likewise."""
    bound_s: float | None
    """Least seconds for the pass, likewise: (1 - hit) x needed bytes / bandwidth of each rank; None: not measured."""

    @property
    def reached(self) -> float | None:
        """Share of the bound that was reached: its seconds over those of a pass."""
        return None if self.bound_s is None or not self.seconds else self.bound_s / self.seconds


def together(records: Sequence[TierRecord | None], layout: Layout) -> TierTotal | None:
    """Of the ranks of a layout, in order. None when none keeps weights in tiers, or none ran."""
    found = [each for each in records if each is not None and each.passes]
    if not found:
        return None
    needed = sum(each.needed_bytes for each in found)
    fresh = sum(each.fresh_bytes - each.stored_bytes for each in found)
    bounds = [None if each is None or not each.passes else each.bound_s or 0.0 for each in records]

    def of_pass(name: str) -> float:
        total: float = sum(getattr(each, name) / each.passes for each in found)
        return total / layout.dp

    def slowest(values: Iterable[float | None]) -> float:
        known = [value or 0.0 for value in values]
        stages = [known[at:at + layout.tp] for at in range(0, len(known), layout.tp)]
        return sum(map(max, stages)) / layout.dp

    def seconds(name: str) -> float:
        return slowest(None if each is None or not each.passes else getattr(each, name) / each.passes
                       for each in records)

    measured = all(each.bound_s is not None for each in found)
    return TierTotal(
        hit=1 - fresh / needed if needed else 1.0, needed_bytes=of_pass("needed_bytes"),
        read_bytes=of_pass("read_bytes"), stored_bytes=of_pass("stored_bytes"), stall_s=seconds("stall_s"),
        seconds=seconds("seconds"), bound_s=slowest(bounds) if measured else None)
