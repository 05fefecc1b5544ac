"""What training kernels and links reach of the stated rates, by generation of devices; fitted by
scripts/fit_training.py."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from math import exp
from typing import Any

import msgspec

from dayzero.schema import Noun

WITHIN = 1.645
"""Standard deviations either way that hold nine tenths."""


class Reached(Noun, frozen=True, kw_only=True):
    """Shares of stated rates, and seconds that do not depend on size."""

    matrix: float
    """Of the matrix rate of 16 bits: large products."""
    matrix8: float
    """Of the matrix rate of 8 bits."""
    matrix4: float
    """Of the matrix rate of 4 bits."""
    surface: float
    """Of the memory bandwidth: operands and result of products, which add to the arithmetic."""
    attention: float
    """Of the matrix rate of 16 bits: fused attention."""
    scores: float
    """Of the memory bandwidth: scores of attention that is not fused."""
    grouped: float
    """Of what products reach: products of experts."""
    before: float
    """Of that, what stacks reach that start a kernel for each expert."""
    scan: float
    """Of the memory bandwidth: the core of linear attention and state spaces."""
    pointwise: float
    """Of the memory bandwidth: norms, activations, the optimiser."""
    cast: float
    """Of the memory bandwidth: casts to fewer bits."""
    routed: float
    """Of the memory bandwidth: rows sorted by expert and back."""
    inside: float
    """Of the links inside a node: tensor and context parallel."""
    network: float
    """Of the network: all but expert parallel."""
    dispatch: float
    """Of the links inside a node: expert parallel."""
    dispatch_network: float
    """Of the network: expert parallel."""
    exposed: float
    """Share of the sending between replicas that nothing hides."""
    launch: float
    """Seconds that the host takes to start a kernel; it runs ahead while the device computes."""
    launch_expert: float
    """Seconds that the host takes to route one layer with experts, beside its kernels."""
    kernel: float
    """Seconds of the device for a kernel whatever its size: its start, and its end while parts of the device idle."""
    message: float
    """Seconds of a collective whatever its size."""
    step: float
    """Seconds of a step whatever its size."""


class Generation(Noun, frozen=True, kw_only=True):
    """What devices of some architectures reach, and how well that is known."""

    name: str
    """Name of the generation."""
    archs: tuple[str, ...]
    """Compiler's names of the architectures."""
    reached: Reached
    """The shares."""
    spread: float
    """Standard deviation of log(predicted / measured) step time over the points of models without experts."""
    spread_experts: float
    """The same of models with experts; where a kind has no points, half as much again as the other."""
    points: int
    """Points of the fit."""
    network: float
    """Bytes a second of one device to other nodes where the target does not say."""
    source: str
    """What was fitted, and where the network's figure is from."""


    def within(self, experts: bool) -> float:
        """The factor either way of a predicted time that holds nine tenths of the steps."""
        return exp(WITHIN * (self.spread_experts if experts else self.spread))


@cache
def _content() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("training.toml").read_text())


def grouped_since() -> str:
    """Year and month (`26.06`) of the software from which on the experts of a rank are multiplied in one kernel."""
    since: str = _content()["grouped_since"]
    return since


@cache
def generations() -> tuple[Generation, ...]:
    """All generations, in the order of the file."""
    return tuple(msgspec.convert(entry, Generation) for entry in _content()["generations"])


def generation(arch: str) -> Generation:
    """The generation of an architecture; of one that no points are of the last entry, which is for all others."""
    return next((one for one in generations() if arch in one.archs), generations()[-1])
