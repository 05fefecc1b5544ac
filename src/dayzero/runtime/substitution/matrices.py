"""Which parameters of a module are matrices."""

from __future__ import annotations

from torch import nn


def matrices(module: nn.Module) -> list[str]:
    """Names of the module's own parameters with rows and columns."""
    return [key for key, each in module._parameters.items()
            if each is not None and each.dim() >= 2 and each.is_floating_point() and not each.is_meta]
