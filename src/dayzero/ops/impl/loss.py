"""Cross entropy of logits, as fused kernels compute it."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy as _cross_entropy

from .register import operator


def _shapes(logits: torch.Tensor, labels: torch.Tensor, smoothing: float, scale: float, square: float, ignored: int,
            softcap: float) -> Any:  # fmt: skip
    rows = logits.new_empty(labels.shape, dtype=torch.float32)
    return rows, torch.empty_like(rows)


@operator("cross_entropy(Tensor logits, Tensor labels, float smoothing, float scale, float square, int ignored, "
          "float softcap) -> (Tensor, Tensor)",
          shapes=_shapes, flops=lambda logits, *_: 4 * logits.numel())  # fmt: skip
def cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float, scale: float, square: float, ignored: int,
    softcap: float,
) -> Any:  # fmt: skip
    """For each row of logits [N, V] and its label [N]: the loss in fp32, `square` * logsumexp ** 2 included, and that
    part alone; rows labelled `ignored` are 0. Logits are multiplied by `scale` and capped first."""
    wide = logits.float() * scale
    if softcap > 0:
        wide = torch.tanh(wide / softcap) * softcap
    counted = labels != ignored
    extra = square * torch.logsumexp(wide, dim=-1).pow(2) * counted
    loss = _cross_entropy(wide, labels, ignore_index=ignored, label_smoothing=smoothing, reduction="none")
    return loss + extra, extra
