"""How much of their stated rates real devices reach, and what engines add: figures fitted to published measurements.

`efficiency.toml` is written by `scripts/fit_efficiency.py`; every figure there belongs to a class of operators on a
generation of devices, to an engine, or to all. docs/numbers.md says which formula takes it.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from math import exp, log, prod
from statistics import fmean
from tomllib import loads
from typing import TypeVar

import msgspec

from dayzero.schema.calibration import Calibration

Figures = TypeVar("Figures", bound=msgspec.Struct)


class Generation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices that reach alike shares of their rates. Shares are of 1; calls are microseconds."""

    arch: tuple[str, ...]
    """`Device.arch` of its devices."""
    linear_rate: float
    """Share of the matrix rate of bf16 that products with weights reach."""
    linear_bytes: float
    """Share of the memory bandwidth that they reach."""
    linear_rows: float
    """Rows at which such a product reaches half of its rate."""
    expert_rate: float
    """The same of the products of routed experts: share of the matrix rate,"""
    expert_bytes: float
    """of the memory bandwidth,"""
    expert_rows: float
    """and rows of one expert at half of the rate."""
    expert_call: float
    """What routing and dispatch inside a device cost a layer."""
    cache_bytes: float
    """Share of the memory bandwidth of attention over a cache."""
    cache_rate_decode: float
    """Share of the matrix rate, one new token for each sequence,"""
    cache_rate_prefill: float
    """and many."""
    latent_bytes: float
    """The same of attention over a latent cache."""
    latent_rate_decode: float
    """Share of the matrix rate, one new token for each sequence,"""
    latent_rate_prefill: float
    """and many."""
    state_bytes: float
    """The same of linear attention: share of the memory bandwidth,"""
    state_rate: float
    """and of the matrix rate."""
    pointwise_bytes: float
    """Share of the memory bandwidth of operators between products."""
    link: float
    """Share of a link's bandwidth that collectives reach."""
    reduce_call: float
    """An all-reduce, whatever its size,"""
    reduce_step: float
    """and for each doubling of its ranks."""
    operator_call: float
    """A product with weights, whatever its size, with the small operators around it."""
    prefill_factor: float
    """Such calls of a prefill pass, on engines' figure."""


class Kernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the kernels of an engine for one scheme of weights reach on a generation, instead of its own figures."""

    arch: tuple[str, ...]
    """`Generation.arch`."""
    engine: str
    """First of `EngineFigures.names`."""
    scheme: str
    """Of the weights."""
    linear: float
    """Factor on the time of products with weights."""
    prefill: float
    """Factor on the time of a prefill pass; of all schemes alike."""
    expert_rate: float
    """As those of `Generation`."""
    expert_bytes: float
    """As those of `Generation`."""
    expert_rows: float
    """As those of `Generation`."""
    expert_call: float
    """As those of `Generation`."""


class EngineFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine adds. Calls are microseconds."""

    names: tuple[str, ...]
    """What tables call it; `any`: one of which nothing is known."""
    operator_factor: float
    """On `Generation.operator_call`."""
    step: float
    """A decode step,"""
    sequence: float
    """and each sequence of it."""
    prefill_call: float
    """A product with weights in a prefill pass, which no captured graph starts."""
    prefill_factor: float
    """On the time of a prefill pass."""
    cache_item: float
    """Bytes of a cached value, against what is counted, where weights have at most 8 bits."""
    cache_factor: float
    """On the time of attention over caches in a decode step."""
    prefill_expert: float
    """A layer with routed experts in a prefill pass."""
    stream: float
    """What each token takes of the one process that takes requests in and hands tokens out, for each scheduler."""
    share: float
    """Of the prefill of others what a sequence waits for between its tokens."""
    mixed: float
    """Of what a prefill pass takes however many prompts it has, what a decode step with a prompt takes more."""
    request: float
    """Milliseconds that a request takes beside its passes."""
    queue: float
    """Prefills that a request waits for: queue + loaded x share of prefill, times sequences^queue_power, and
    burst x sequences / 2 besides."""
    queue_power: float
    """See `queue`."""
    loaded: float
    """See `queue`."""
    burst: float
    """Share of the requests that arrive all at once: see `queue`."""
    apart_prefill: float
    """Factor on passes of workers that only prefill."""
    unstated_tpot: float
    """Factor on decode steps of workers apart whose number is not stated: such points often speculate."""
    reserved: float
    """Share of the output for which cache has to be free before a request is taken up."""


class Common(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for all devices and engines."""

    linear_gain: float
    """Of a rate above that of bf16: products with weights gain (rate / rate of bf16)^gain,"""
    expert_gain: float
    """those of routed experts with this one."""
    imbalance: float
    """Factor on the time of experts that lie whole on ranks."""
    exchange_call: float
    """Microseconds of an all-to-all, whatever its size."""
    far_call: float
    """Microseconds that an all-reduce over the network takes more."""
    network: float
    """Bytes a second of one device over the network, where none is stated."""
    wide: float
    """Factor on decode steps of a replica with attention of its own on each device."""
    drafted: float
    """Factor on the time between tokens of a model that proposes tokens itself, where it does."""
    acceptance: float
    """Probability that a token which the model proposes is right after the one before it."""
    apart_decode: float
    """Factor on decode steps of workers that only decode,"""
    apart_wide: float
    """and of wide replicas among them."""
    apart_room: float
    """Of the wait for room that differences of rates between workers apart would make, what there is."""
    apart_request: float
    """Milliseconds that a request takes for the way between workers."""
    apart_first: float
    """Milliseconds that the first request to a worker takes more, once in ten requests for each that is under way."""
    apart_queue: float
    """Prefills that a request waits for: apart_queue x (sequences of a worker)^apart_power."""
    apart_power: float
    """See `apart_queue`."""
    apart_capacity: float
    """Of the prompts a second that workers which only prefill could do, what they do at most."""
    unstated_workers: float
    """Where the number of workers is not stated, there are requests^unstated_workers of them,"""
    unstated_wide_workers: float
    """of wide ones requests^unstated_wide_workers."""
    unstated_wide: float
    """There, factor on the time between tokens of wide replicas."""
    unstated_capacity: float
    """As `apart_capacity`, where there are as many devices that prefill as that decode."""
    unstated_queue: float
    """As `apart_queue`, likewise."""
    unstated_power: float
    """As `apart_power`, likewise."""


_MEASURED = ("linear", "prefill", "expert_rate", "expert_bytes", "expert_rows", "expert_call")
"""Figures of `Kernels`."""


class Interval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Factors around a prediction that nine of ten measurements lie between."""

    evidence: str
    """What is known of the case."""
    rows: int
    """Measurements that it is from."""
    tpot: tuple[float, float]
    """On the time between tokens."""
    ttft: tuple[float, float]
    """On the time to the first token."""


class Efficiency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    source: str
    """Where the measurements are from."""
    rows: int
    """Measurements that were fitted."""
    spread: dict[str, float]
    """Mean and median relative errors, in the fit and with classes left out."""
    common: Common
    """For all."""
    generations: tuple[Generation, ...]
    """Of devices."""
    engines: tuple[EngineFigures, ...]
    """Of engines."""
    kernels: tuple[Kernels, ...]
    """Of engines' kernels on generations."""
    intervals: tuple[Interval, ...]
    """By evidence."""

    def generation(self, arch: str) -> tuple[Generation, bool]:
        """(the generation of an architecture, whether it was measured); of others the nearest of the same maker by
        number, else the mean of all."""
        known = next((one for one in self.generations if arch in one.arch), None)
        if known:
            return known, True
        maker, number = _split(arch)
        near = [(abs(_split(name)[1] - number), one) for one in self.generations for name in one.arch
                if number and _split(name)[0] == maker]
        if near:
            return min(near, key=lambda pair: pair[0])[1], False
        return next(one for one in self.generations if not one.arch), False

    def engine(self, name: str) -> tuple[EngineFigures, bool]:
        """(figures of an engine, whether it was measured)."""
        known = next((one for one in self.engines if name in one.names), None)
        return known or next(one for one in self.engines if "any" in one.names), known is not None

    def kernel(self, arch: tuple[str, ...], engine: str, scheme: str) -> Kernels | None:
        """The kernels of an engine for a scheme on a generation; where they were not measured, those in the middle of
        the other engines'. None: of none."""
        alike = [one for one in self.kernels if one.arch == arch and one.scheme == scheme]
        own = next((one for one in alike if one.engine == engine), None)
        if own or not alike:
            return own
        middle = {field: exp(fmean(log(getattr(one, field)) for one in alike)) for field in _MEASURED}
        return msgspec.structs.replace(alike[0], engine=engine, **middle)

    def figures(self, arch: str, engine: str, products: str = "", experts: str = ""
                ) -> tuple[Generation, EngineFigures, bool]:
        """(the generation with the kernels of the engine for products with weights and for routed experts of these
        schemes, the engine, whether both were measured)."""
        (made, measured), (own, familiar) = self.generation(arch), self.engine(engine)
        linear, expert = (self.kernel(made.arch, own.names[0], scheme) for scheme in (products, experts))
        prefill = linear or expert
        if prefill:
            own = msgspec.structs.replace(own, prefill_factor=own.prefill_factor * prefill.prefill)
        if linear:
            made = msgspec.structs.replace(made, linear_rate=made.linear_rate / linear.linear,
                                           linear_bytes=made.linear_bytes / linear.linear)
        if expert:
            made = msgspec.structs.replace(made, **{field: getattr(expert, field) for field in _MEASURED[2:]})
        return made, own, measured and familiar

    def interval(self, evidence: str) -> Interval:
        """The factors for that evidence."""
        return next(one for one in self.intervals if one.evidence == evidence)


def _split(arch: str) -> tuple[str, int]:
    """(letters, number) of a compiler's name of an architecture; number 0: it is not a rising one."""
    match = re.fullmatch(r"([a-z]+_)(\d+)[a-z]?", arch)
    return (match[1], int(match[2])) if match else (arch, 0)


FACTORS: dict[str, dict[str, int]] = {
    "products": {"linear_rate": -1, "linear_bytes": -1},
    "experts": {"expert_rate": -1, "expert_bytes": -1, "expert_call": 1},
    "attention": dict.fromkeys(("cache_bytes", "cache_rate_decode", "cache_rate_prefill", "latent_bytes",
                                "latent_rate_decode", "latent_rate_prefill", "state_bytes", "state_rate"), -1),
    "links": {"link": -1, "reduce_call": 1, "reduce_step": 1, "exchange_call": 1, "far_call": 1},
    "calls": {"operator_call": 1},
    "steps": {"step": 1, "sequence": 1},
    "prefill": {"prefill_factor": 1},
    "prefill of others": {"share": 1, "mixed": 1},
    "waiting": {"queue": 1, "loaded": 1, "burst": 1, "apart_queue": 1, "unstated_queue": 1},
    "requests": {"request": 1, "apart_request": 1},
}
"""Causes of time that a calibration has factors for -> the figures that say how long they take, with the power of the
factor: -1 for shares of a rate."""


def calibrated(known: Efficiency, calibration: Calibration) -> Efficiency:
    """The figures with those factors, and the intervals of the measurements where there were enough."""
    powers: dict[str, list[tuple[float, int]]] = {}
    for cause, factor in calibration.factors.items():
        for field, power in FACTORS[cause].items():
            powers.setdefault(field, []).append((factor, power))
    intervals = tuple(msgspec.structs.replace(one, tpot=calibration.tpot or one.tpot, ttft=calibration.ttft or one.ttft)
                      for one in known.intervals)
    return msgspec.structs.replace(
        known, common=_changed(known.common, powers), intervals=intervals,
        **{part: tuple(_changed(one, powers) for one in getattr(known, part))
           for part in ("generations", "engines", "kernels")})


def _changed(one: Figures, powers: dict[str, list[tuple[float, int]]]) -> Figures:
    own = [field for field in one.__struct_fields__ if field in powers]
    if isinstance(one, Generation):
        own = [field for field in own if field != "prefill_factor"]  # an engine has one of that name, and it is enough
    return msgspec.structs.replace(one, **{field: getattr(one, field) * prod(factor**power for factor, power
                                                                            in powers[field]) for field in own})


@cache
def _shipped() -> Efficiency:
    return msgspec.convert(loads(files(__package__).joinpath("efficiency.toml").read_text()), Efficiency)


def efficiency(calibration: Calibration | None = None) -> Efficiency:
    """The figures; with a calibration those that it makes of them."""
    return calibrated(_shipped(), calibration) if calibration else _shipped()
