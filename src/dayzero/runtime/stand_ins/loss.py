"""Stand-ins for fused cross entropy (of flash_attn, fla, liger_kernel)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from dayzero.ops import impl

from .recording import unsupported


def cross_entropy_loss(
    logits: torch.Tensor, labels: torch.Tensor, precomputed_lse: torch.Tensor | None = None,
    label_smoothing: float = 0.0, logit_scale: float = 1.0, lse_square_scale: float = 0.0, ignore_index: int = -100,
    inplace_backward: bool = False, process_group: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Loss of each row and its share from the square of the logsumexp."""
    unsupported(process_group=process_group)
    result: tuple[torch.Tensor, torch.Tensor] = impl.loss.cross_entropy(
        logits, labels, label_smoothing, logit_scale, lse_square_scale, ignore_index, 0.0)
    return result


def _reduced(loss: torch.Tensor, labels: torch.Tensor, ignored: int, reduction: str) -> torch.Tensor:
    if reduction == "none":
        return loss
    total = loss.sum()
    return total / (labels != ignored).sum() if reduction == "mean" else total


class CrossEntropyLoss(nn.Module):
    """The loss as a module; arguments beyond those used here must keep their defaults."""

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0, logit_scale: float = 1.0,
        lse_square_scale: float = 0.0, logit_softcapping: float | None = None, inplace_backward: bool = False,
        process_group: Any = None, return_z_loss: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        unsupported(process_group=process_group)
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing
        self.logit_scale, self.lse_square_scale, self.return_z_loss = logit_scale, lse_square_scale, return_z_loss
        self.softcap = logit_softcapping or 0.0

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> Any:
        """Logits [N, V] and labels [N]."""
        loss, extra = impl.loss.cross_entropy(input, target, self.label_smoothing, self.logit_scale,
                                              self.lse_square_scale, self.ignore_index, self.softcap)
        out = _reduced(loss, target, self.ignore_index, self.reduction)
        return (out, _reduced(extra, target, self.ignore_index, self.reduction)) if self.return_z_loss else out


class FusedLinearCrossEntropyLoss(nn.Module):
    """The loss of what the last projection gives."""

    def __init__(
        self, ignore_index: int = -100, label_smoothing: float = 0.0, logit_scale: float = 1.0,
        logit_softcapping: float | None = None, num_chunks: int = 8, reduction: str = "mean", use_l2warp: bool = False,
        l2_penalty_factor: float = 1e-4, accumulate_grad_in_fp32: bool = True, process_group: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        unsupported(process_group=process_group, use_l2warp=use_l2warp)
        self.ignore_index, self.label_smoothing, self.logit_scale = ignore_index, label_smoothing, logit_scale
        self.softcap, self.reduction = logit_softcapping or 0.0, reduction

    def forward(self, x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor,
                bias: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
        """x [N, hidden], labels [N], weight [V, hidden]."""
        logits = linear(x.flatten(0, -2), weight, bias)
        loss, _ = impl.loss.cross_entropy(logits, target.flatten(), self.label_smoothing, self.logit_scale, 0.0,
                                          self.ignore_index, self.softcap)
        return _reduced(loss, target, self.ignore_index, self.reduction)
