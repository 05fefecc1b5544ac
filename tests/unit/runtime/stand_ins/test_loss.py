"""The forms of cross entropy."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from dayzero.runtime.stand_ins import loss


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions(reduction: str) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(4, 7), torch.tensor([1, -100, 3, 6])
    out = loss.CrossEntropyLoss(reduction=reduction, label_smoothing=0.1)(logits, labels)
    torch.testing.assert_close(out, cross_entropy(logits, labels, reduction=reduction, label_smoothing=0.1))


def test_of_a_projection_and_of_rows() -> None:
    torch.manual_seed(0)
    x, weight, labels = torch.randn(2, 3, 4), torch.randn(7, 4), torch.tensor([[1, 2, 3], [4, 5, -100]])
    logits = (x @ weight.T).flatten(0, 1)
    out = loss.FusedLinearCrossEntropyLoss()(x, labels, weight)
    torch.testing.assert_close(out, cross_entropy(logits, labels.flatten()))
    rows, extra = loss.cross_entropy_loss(logits, labels.flatten(), lse_square_scale=0.1)
    square = 0.1 * torch.logsumexp(logits, -1).pow(2) * (labels.flatten() != -100)
    torch.testing.assert_close(extra, square)
    torch.testing.assert_close(rows, cross_entropy(logits, labels.flatten(), reduction="none") + square)
    both = loss.CrossEntropyLoss(lse_square_scale=0.1, return_z_loss=True)(logits, labels.flatten())
    torch.testing.assert_close(both[1], square.sum() / 5)
