"""What a plan for serving says beside times at a constant number of requests: random arrivals, workers apart, what lies
in the host's memory, other precisions."""

from __future__ import annotations

from .base import Noun
from .estimate import Estimate
from .layout import Layout


class Arrivals(Noun, frozen=True, kw_only=True):
    """What requests see of a layout when they arrive at random times, at the rate that the workload states."""

    rate: float
    """Requests a second, over all replicas."""
    capacity: float
    """Requests a second that the layout keeps up with at most."""
    sequences: float
    """Sequences that are decoded at any time, on average, over all replicas."""
    ttft_percentiles: dict[str, float]
    """Seconds to the first token: p50, p90, p99."""
    gap_percentiles: dict[str, float]
    """Seconds from one pass of a sequence to its next, such as one that a prompt shares: p50, p90, p99."""
    tokens_of_pass: float = 1.0
    """Tokens that a sequence gets from a pass, on average: more than one where tokens are proposed."""


class Offload(Noun, frozen=True, kw_only=True):
    """What a layout keeps outside of the devices because it does not fit there, for one device."""

    shares: dict[str, float]
    """Of experts, weights and cache, from 0 to 1."""
    host_bytes: int
    """In the host's memory."""
    disk_bytes: int
    """On disk."""
    needed_bytes: int
    """That a decode pass needs of both."""
    bound_s: float
    """Least seconds for each further token, whatever else is fast: the needed bytes at the stated bandwidth."""


class Disaggregated(Noun, frozen=True, kw_only=True):
    """Workers that only prefill beside workers that only decode."""

    prefill: Layout
    """Of a prefill worker."""
    decode: Layout
    """Of a decode worker."""
    prefill_workers: int
    """Of the first."""
    decode_workers: int
    """Of the second."""
    devices: int
    """That all of them take."""
    batch: float
    """Sequences that a decode worker decodes together."""
    ttft_s: Estimate
    """Time to the first token, with the way of the cache."""
    tpot_s: Estimate
    """Time for each further token."""
    tokens_per_s: Estimate
    """Output tokens a second of all workers together."""
    transfer_s: float
    """Time of the cache of a prompt from worker to worker."""
    waits_for: str
    """What bounds the requests a second: prefill, decode, or arrivals."""
    within: bool = True
    """Whether it meets all limits of the target."""


class Variant(Noun, frozen=True, kw_only=True):
    """The best layout for the release in one precision of its weights."""

    precision: str
    """As the workload names it."""
    released: bool
    """Whether the release is in that precision; if not, such a checkpoint has to be made."""
    checkpoint_bytes: int
    """Bytes of its weights."""
    layout: Layout | None
    """The best that fits; None: none does."""
    ttft_s: Estimate | None
    """Its time to the first token."""
    tpot_s: Estimate | None
    """Its time for each further token."""
    tokens_per_s: Estimate | None
    """Output tokens a second of the whole cluster."""
    max_sequences: int
    """Sequences of full length that fit at the same time."""
