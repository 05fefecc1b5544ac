"""How much of their stated rates real devices reach, and what engines add: figures fitted to published measurements.

`efficiency.toml` is written by `scripts/fit_efficiency.py`; every figure there belongs to a class of operators on a
generation of devices, to an engine, or to all. docs/numbers.md says which formula takes it.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from tomllib import loads

import msgspec


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
    share: float
    """Of the prefill of others what a sequence waits for between its tokens."""
    request: float
    """Milliseconds that a request takes beside its passes."""
    queue: float
    """Prefills that a request waits for: queue + loaded x share of prefill, times sequences^queue_power."""
    queue_power: float
    """See `queue`."""
    loaded: float
    """See `queue`."""
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
    """Microseconds that a collective over the network takes more."""
    network: float
    """Bytes a second of one device over the network, where none is stated."""
    wide: float
    """Factor on decode steps of a replica with attention of its own on each device."""
    apart_decode: float
    """Factor on decode steps of workers that do nothing else."""
    apart_request: float
    """Milliseconds that a request takes for the way between workers."""
    apart_queue: float
    """Prefills that a request waits for: apart_queue x (sequences of a worker)^apart_power."""
    apart_power: float
    """See `apart_queue`."""
    worker_sequences: float
    """Sequences of one device of a decode worker, where the number of workers is not stated."""
    unstated_tpot: float
    """Where the number of workers is not stated, a factor on the time between tokens: unstated_tpot x
    batch^-unstated_batch,"""
    unstated_batch: float
    """see `unstated_tpot`,"""
    unstated_wide: float
    """and this one besides on that of wide replicas: such tables sum devices of all workers up."""
    unstated_queue: float
    """As `apart_queue`, likewise."""
    unstated_power: float
    """As `apart_power`, likewise."""


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

    def interval(self, evidence: str) -> Interval:
        """The factors for that evidence."""
        return next(one for one in self.intervals if one.evidence == evidence)


def _split(arch: str) -> tuple[str, int]:
    """(letters, number) of a compiler's name of an architecture; number 0: it is not a rising one."""
    match = re.fullmatch(r"([a-z]+_)(\d+)[a-z]?", arch)
    return (match[1], int(match[2])) if match else (arch, 0)


@cache
def efficiency() -> Efficiency:
    """The figures."""
    return msgspec.convert(loads(files(__package__).joinpath("efficiency.toml").read_text()), Efficiency)
