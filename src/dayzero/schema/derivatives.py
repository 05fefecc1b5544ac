"""Derivatives: whether gradients are those of the loss, and whether training goes the same way in every layout."""

from __future__ import annotations

from .base import Noun


class Derivatives(Noun, frozen=True, kw_only=True):
    """What to do; everything in f32, on the same few sequences."""

    steps: int
    """Steps of plain gradient descent."""
    samples: int
    """Parameters whose gradient is compared with finite differences; 0: none."""
    rate: float = 0.0
    """Learning rate; 0: such that a step moves the weights by 2 % of their length."""
    recompute: bool = False
    """Whether gradients are taken with recomputed activations too."""
    fsdp: bool = False
    """Whether replicas share the weights: each holds a part of every parameter."""


class Sampled(Noun, frozen=True, kw_only=True):
    """One parameter's gradient along itself."""

    name: str
    """Path of the parameter."""
    gradient: float
    """Its length: the slope of the loss along it."""
    difference: float
    """The same slope by central differences (two steps, Richardson), the nearest of a few step sizes."""
    skipped: str = ""
    """Why it was not tried; empty when it was."""


class Derived(Noun, frozen=True, kw_only=True):
    """What one rank saw."""

    losses: tuple[float, ...]
    """Before each step, mean over all replicas; empty where a later stage has the loss, or gradients are no numbers."""
    noise: float
    """Largest relative change of these by one rounding error in the embedding; 0: not measured here."""
    rate: float
    """Learning rate."""
    odd: dict[str, int] = {}
    """Parameter -> values of its gradient that are NaN or infinite."""
    absent: tuple[str, ...] = ()
    """Parameters that no gradient reached."""
    sampled: tuple[Sampled, ...] = ()
    """Against finite differences."""
    recomputed: float | None = None
    """Largest relative L2 of a parameter's gradient with recomputed activations; None: not tried."""
    why_not: str = ""
    """Why not."""
