"""Random values that a model can compute with: matrices of standard deviation 1/sqrt(inputs), norms near 1, small
biases, decays and steps of state spaces in their usual ranges. Each tensor has a generator of its own, seeded by its
name."""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase
from math import prod

import numpy as np

from dayzero.data.twin import twin_facts

from .floats import Array

SPREAD = 0.02
"""Standard deviation of biases, and of norms around 1."""
Shape = tuple[int, ...]


def generator(seed: int, name: str) -> np.random.Generator:
    """The same for the same seed and name, whatever else is made."""
    words = np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], np.uint32)
    return np.random.default_rng([seed, *words.tolist()])


def matrix(seed: int, name: str, shape: Shape, fan_in: int) -> Array:
    """Values of a module's own weight, by its name."""
    kind = kind_of(name)
    if kind is not None or len(shape) < 2:
        return vector(seed, name, shape, kind)
    return generator(seed, name).standard_normal(shape, np.float32) * np.float32(fan_in**-0.5)


def kind_of(name: str) -> str | None:
    """What the numbers are like by the last word of a name; None: the name does not say."""
    leaf, rules = name.rpartition(".")[2], twin_facts().values
    return next((rule.like for rule in rules if any(fnmatchcase(leaf, word) for word in rule.words)), None)


def vector(seed: int, name: str, shape: Shape, kind: str | None) -> Array:
    """Values of what is no matrix."""
    made = generator(seed, name)
    noise = made.standard_normal(shape, np.float32) * np.float32(SPREAD)
    match kind:
        case "decay":
            return np.log(made.uniform(1, 16, shape)).astype(np.float32)
        case "step":
            step = np.exp(made.uniform(np.log(1e-3), np.log(0.1), shape))
            return (step + np.log(-np.expm1(-step))).astype(np.float32)
        case "frequencies":
            count = max(1, prod(shape))
            return (10000.0 ** (-np.arange(count) / count)).reshape(shape).astype(np.float32)
        case "one":
            return 1 + noise
        case "cache_scale":
            return np.ones(shape, np.float32)
    return noise


def table(seed: int, name: str, shape: Shape, experts: int) -> Array:
    """Integers: positions where the name says so, numbers of experts elsewhere."""
    if "position" in name:
        return np.broadcast_to(np.arange(shape[-1] if shape else 1), shape).copy()
    if experts and len(shape) > 1:
        return generator(seed, name).integers(0, experts, shape)
    return np.zeros(shape, np.int64)
