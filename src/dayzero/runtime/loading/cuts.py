"""What part of a tensor is kept. Without torch."""

from __future__ import annotations

Cut = dict[int, tuple[tuple[int, int], ...]]
"""Axis of the model's tensor -> ranges that are kept, one behind the other. An axis that is not named is whole."""
