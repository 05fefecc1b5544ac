"""Plan: how the model is laid out on the cluster, what fits and how fast it should be."""

from __future__ import annotations

from .base import Noun
from .estimate import Estimate
from .explanation import Bound, Change, Family, Point, Size
from .layout import Layout
from .serving import Arrivals, Disaggregated, Offload, Variant


class Candidate(Noun, frozen=True, kw_only=True):
    """One legal layout with what it needs and how fast it should be."""

    layout: Layout
    """The degrees."""
    fits: bool
    """Whether every device has room."""
    stages: tuple[tuple[int, int], ...]
    """For each pipeline stage: first layer and one past the last."""
    bytes_per_device: dict[str, int]
    """Bytes on the fullest device by cause: weights, kv_cache, state, activations, logits, workspace, communication,
    graphs, fragmentation, process."""
    usable_bytes: int
    """Bytes that one device may use."""
    bytes_per_stage: tuple[dict[str, int], ...]
    """The same for one device of each pipeline stage."""
    max_sequences: int
    """Sequences of full length that fit at the same time, over all replicas."""
    ttft_s: Estimate
    """Time to the first token: a mean at the workload's load, with what a request waits for; of a device whose rates
    are measured or stated with an efficiency that of a prompt alone on its replica."""
    tpot_s: Estimate
    """Time for each further token, at the workload's concurrency."""
    tokens_per_s: Estimate
    """Output tokens a second of the whole cluster, of requests that follow one another at the workload's concurrency;
    where `ttft_s` is that of a prompt alone, while decoding."""
    decode_seconds: dict[str, float]
    """`tpot_s` by cause: the kinds of operators, communication, overhead."""
    prefill_seconds: dict[str, float]
    """`ttft_s` by cause."""
    limits: tuple[str, ...]
    """What bounds it: memory bandwidth, matrix rate, a link, overhead; and what is not modelled."""
    explanation: str
    """Why it ranks where it does, in one or two sentences."""
    within: bool = True
    """Whether it meets all limits of the target."""
    comparison: str = ""
    """What it loses against the first, cause by cause, or what it lacks; empty: it is the first."""
    arrivals: Arrivals | None = None
    """What random arrivals make of it, where the workload states a rate; the times are their means then."""
    offload: Offload | None = None
    """What it keeps outside of the devices; None: nothing."""
    weights: dict[str, int] = {}
    """The weights of `bytes_per_device` by what they belong to: attention, experts, embedding ..."""
    max_context: int = 0
    """Tokens of the longest sequence that has room with one on each replica; 0: none has."""

    @property
    def bytes_by_part(self) -> dict[str, int]:
        """`bytes_per_device` with the weights by what they belong to, where that is known."""
        parts = {f"{part} weights": size for part, size in self.weights.items()}
        return parts | {cause: size for cause, size in self.bytes_per_device.items() if cause != "weights" or not parts}

    @property
    def need_bytes(self) -> int:
        """Bytes on the fullest device."""
        return sum(self.bytes_per_device.values())


class Trained(Noun, frozen=True, kw_only=True):
    """One legal layout for training: the fastest way to train with it that fits, or else the one that needs least."""

    layout: Layout
    """The degrees; cp of the dp ranks share one sequence."""
    fits: bool
    """Whether every device has room."""
    stages: tuple[tuple[int, int], ...]
    """For each pipeline stage: first layer and one past the last; interleaved, of each chunk, dealt out in turn."""
    bytes_per_device: dict[str, int]
    """Bytes on the fullest device by cause: weights, gradients, optimiser, activations, logits, communication,
    fragmentation, process."""
    bytes_per_stage: tuple[dict[str, int], ...]
    """The same for one device of each pipeline stage."""
    usable_bytes: int
    """Bytes that one device may use."""
    micro_batch: int
    """Sequences of a micro-batch."""
    micro_batches: int
    """Micro-batches of a replica in a step."""
    recompute: str
    """What backward computes again: none, selective, products (every second one too) or full."""
    zero: int
    """What replicas share: 0 nothing, 1 optimiser states, 2 gradients too, 3 weights too."""
    virtual: int
    """Chunks of layers that each stage holds; above 1 the pipeline is interleaved."""
    schedule: str
    """1f1b or zero-bubble."""
    step_s: Estimate
    """Time of a training step."""
    tokens_per_s: Estimate
    """Tokens a second of the whole cluster."""
    mfu: float
    """Operations that the model asks for, of those that the devices state for the precision."""
    days: Estimate
    """Days to the tokens that the workload states, or to a trillion."""
    bubble: float
    """Share of the step in which a stage waits for the pipeline."""
    step_seconds: dict[str, float]
    """`step_s` by cause."""
    limits: tuple[str, ...]
    """What takes most of the time."""
    explanation: str
    """Why it ranks where it does."""
    comparison: str = ""
    """What it loses against the first; empty for the first and where it does not fit."""
    sequence_parallel: bool = True
    """Whether tp ranks share what lies between products along the sequence."""
    offload: str = "none"
    """What lies in the host's memory, each with those before it: none, optimiser, gradients, weights."""
    host_bytes: int = 0
    """Bytes of that for each device."""

    @property
    def need_bytes(self) -> int:
        """Bytes on the fullest device."""
        return sum(self.bytes_per_device.values())


class Rejected(Noun, frozen=True, kw_only=True):
    """A layout that does not work, and why."""

    layout: Layout
    """The degrees."""
    rule: str
    """Name of the preflight rule that it breaks."""
    message: str
    """What is the case."""


class Plan(Noun, frozen=True, kw_only=True):
    """The layouts for one release on one target, best first."""

    candidates: tuple[Candidate, ...]
    """Legal layouts, those that fit first, then by throughput."""
    rejected: tuple[Rejected, ...]
    """Layouts that break a rule; those that only lack memory are candidates with `fits` false."""
    evaluated: int
    """Layouts looked at."""
    seconds: float
    """What the search took."""
    workload: dict[str, object]
    """The workload that the figures are for."""
    notes: tuple[str, ...] = ()
    """What the figures leave out."""
    training: tuple[Trained, ...] = ()
    """Layouts for training, those that fit first, then by the time of a step; `candidates` is empty then."""
    summary: tuple[str, ...] = ()
    """What to know first, in sentences: the first layout, the next, the limits, the smallest cluster."""
    front: tuple[Point, ...] = ()
    """Layouts and loads that no other beats, from the least latency to the most throughput."""
    limits: tuple[Bound, ...] = ()
    """The target's limits, each with how near the layouts come."""
    families: tuple[Family, ...] = ()
    """`rejected` by reason, the largest first; then layouts that do not fit, by what takes most of their memory."""
    sensitivity: tuple[Change, ...] = ()
    """What a fifth more or less of each rate changes."""
    smallest: tuple[Size, ...] = ()
    """The smallest clusters that work, where that was asked for or this one does not."""

    apart: tuple[Disaggregated, ...] = ()
    """Workers that only prefill and workers that only decode, best first."""
    variants: tuple[Variant, ...] = ()
    """The best layout for each precision that the workload names."""

    @property
    def best(self) -> Candidate | None:
        """The first layout that fits, or None."""
        return next((candidate for candidate in self.candidates if candidate.fits), None)

    @property
    def trained(self) -> Trained | None:
        """The first layout for training that fits, or None."""
        return next((one for one in self.training if one.fits), None)
