"""Layout, Estimate and Plan: how the model is laid out on the cluster, what fits and how fast it should be."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dayzero.errors import LayoutError

from .base import Noun

DEGREES = ("tp", "pp", "ep", "dp", "cp")
_SPELLING = "write it like tp=2,pp=1 with tp, pp, ep, dp, cp"
_DIGITS = 7
_SHORT = 40


class Layout(Noun, frozen=True, kw_only=True):
    """Parallel degrees. tp * pp * dp devices; ep spreads whole experts over tp * dp of them."""

    tp: int = 1
    """Tensor parallel: ranks that share each layer's matrices."""
    pp: int = 1
    """Pipeline parallel: stages that each hold some of the layers."""
    ep: int = 1
    """Expert parallel: groups of whole experts; an expert's width is split max(1, tp / ep) ways."""
    dp: int = 1
    """Data parallel: replicas of the attention part (and of all, when ep is 1), each with its own requests."""
    cp: int = 1
    """Context parallel: ranks, out of the tp group, that share one sequence's tokens."""
    attention_tp: int = 0
    """Ranks that share attention; 0: all tp ranks, and `tp` itself becomes 0, so that equal layouts are equal."""

    def __post_init__(self) -> None:
        bad = [f"{name}={getattr(self, name)}" for name in DEGREES if getattr(self, name) < 1]
        if bad or self.attention_tp < 0:
            raise LayoutError(f"degrees start at 1: {', '.join(bad) or f'attention_tp={self.attention_tp}'}",
                              "leave out what is not used, or write 1")
        if (self.tp * self.dp) % self.ep:
            raise LayoutError(f"ep={self.ep} does not divide the tp*dp={self.tp * self.dp} ranks of a stage",
                              "take an ep that divides tp*dp")
        if self.tp % self.attention_degree:
            raise LayoutError(f"attention_tp={self.attention_tp} does not divide tp={self.tp}",
                              "take an attention_tp that divides tp, or leave it out")
        if self.attention_tp == self.tp:
            msgspec.structs.force_setattr(self, "attention_tp", 0)

    @property
    def attention_degree(self) -> int:
        """Ranks that share attention."""
        return self.attention_tp or self.tp

    @property
    def expert_tp(self) -> int:
        """Ways that one expert's width is split."""
        return max(1, self.tp // self.ep)

    @property
    def world_size(self) -> int:
        """Devices that the layout takes."""
        return self.tp * self.pp * self.dp

    @property
    def text(self) -> str:
        """`tp=2 pp=1 dp=2`: the degrees above 1, or `one device`."""
        used = {name: getattr(self, name) for name in DEGREES if getattr(self, name) > 1}
        if self.attention_degree != self.tp:
            used["attention_tp"] = self.attention_tp
        return " ".join(f"{name}={degree}" for name, degree in used.items()) or "one device"

    def check_world(self, world_size: int) -> Layout:
        """Itself. Raises LayoutError when it does not take exactly that many devices."""
        if self.world_size != world_size:
            raise LayoutError(f"tp*pp*dp = {self.tp}*{self.pp}*{self.dp} = {self.world_size} devices, "
                              f"but there are {world_size}",
                              "choose degrees that multiply to the number of devices, or change the cluster")
        return self

    @classmethod
    def parse(cls, text: str) -> Layout:
        """`"tp=2,pp=1"` -> Layout; no text is one device. Raises LayoutError with the word that is wrong."""
        degrees: dict[str, int] = {}
        for part in filter(None, text.replace(" ", ",").split(",")):
            name, _, number = part.partition("=")
            if name not in (*DEGREES, "attention_tp") or not number.isdecimal():
                raise LayoutError(f"not a degree: {_short(part)!r}", _SPELLING)
            if len(number) > _DIGITS:
                raise LayoutError(f"{name}={_short(number)} is more than any cluster has", _SPELLING)
            if name in degrees:
                raise LayoutError(f"{name} is given twice: {_short(text)!r}",
                                  "give each degree once; another layout is another --layout")
            degrees[name] = int(number)
        return cls(**degrees)


def _short(text: str) -> str:
    """The text, or the start of a long one."""
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


class Estimate(Noun, frozen=True, kw_only=True):
    """A predicted figure with the interval that it should lie in."""

    value: float
    """Best guess."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""
    unit: str
    """s, tokens/s, B ..."""
    source: str
    """Measured, datasheet or formula, by the name that docs/numbers.md gives it."""


class Candidate(Noun, frozen=True, kw_only=True):
    """One legal layout with what it needs and how fast it should be."""

    layout: Layout
    """The degrees."""
    fits: bool
    """Whether every device has room."""
    stages: tuple[tuple[int, int], ...]
    """For each pipeline stage: first layer and one past the last."""
    bytes_per_device: dict[str, int]
    """Bytes on the fullest device by cause: weights, kv_cache, state, activations, logits, process, workspace."""
    usable_bytes: int
    """Bytes that one device may use."""
    bytes_per_stage: tuple[dict[str, int], ...]
    """The same for one device of each pipeline stage."""
    max_sequences: int
    """Sequences of full length that fit at the same time, over all replicas."""
    ttft_s: Estimate
    """Time to the first token of a prompt of the workload's length, alone on its replica."""
    tpot_s: Estimate
    """Time for each further token, at the workload's concurrency."""
    tokens_per_s: Estimate
    """Output tokens a second of the whole cluster while decoding at the workload's concurrency."""
    decode_seconds: dict[str, float]
    """`tpot_s` by cause: the kinds of operators, communication, overhead."""
    prefill_seconds: dict[str, float]
    """`ttft_s` by cause."""
    limits: tuple[str, ...]
    """What bounds it: memory bandwidth, matrix rate, a link, overhead; and what is not modelled."""
    explanation: str
    """Why it ranks where it does, in one or two sentences."""

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
    """For each pipeline stage: first layer and one past the last."""
    bytes_per_device: dict[str, int]
    """Bytes on the fullest device by cause: weights, gradients, optimiser, activations, logits, communication,
    process."""
    bytes_per_stage: tuple[dict[str, int], ...]
    """The same for one device of each pipeline stage."""
    usable_bytes: int
    """Bytes that one device may use."""
    micro_batch: int
    """Sequences of a micro-batch."""
    micro_batches: int
    """Micro-batches of a replica in a step."""
    recompute: str
    """What backward computes again: none, selective or full."""
    zero: int
    """What replicas share: 1 optimiser states, 2 gradients too, 3 weights too."""
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

    @property
    def best(self) -> Candidate | None:
        """The first layout that fits, or None."""
        return next((candidate for candidate in self.candidates if candidate.fits), None)

    @property
    def trained(self) -> Trained | None:
        """The first layout for training that fits, or None."""
        return next((one for one in self.training if one.fits), None)


def degrees(layout: Layout) -> Mapping[str, int]:
    """The degrees as a mapping, in the order of DEGREES and then attention_tp."""
    return msgspec.structs.asdict(layout)
