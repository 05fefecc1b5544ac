"""Cross entropy by hand."""

from math import log

import pytest
import torch

from dayzero.ops import impl


def test_by_hand() -> None:
    """Logits 0 and ln 3: the second is 3 of 4, the logsumexp is ln 4; an ignored row is 0."""
    logits = torch.tensor([[0.0, log(3.0)], [0.0, log(3.0)]])
    loss, extra = impl.loss.cross_entropy(logits, torch.tensor([1, -100]), 0.0, 1.0, 0.5, -100, 0.0)
    assert extra.tolist() == [pytest.approx(0.5 * log(4.0) ** 2), 0.0]
    assert loss.tolist() == [pytest.approx(-log(0.75) + 0.5 * log(4.0) ** 2), 0.0]


def test_scale_and_cap_come_first() -> None:
    logits, labels = torch.randn(4, 7), torch.tensor([0, 3, 6, 2])
    loss, _ = impl.loss.cross_entropy(logits, labels, 0.1, 2.0, 0.0, -100, 1.5)
    capped = torch.tanh(logits * 2 / 1.5) * 1.5
    expected = torch.nn.functional.cross_entropy(capped, labels, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(loss, expected)
    assert impl.loss.cross_entropy(logits.to("meta"), labels.to("meta"), 0.1, 2.0, 0.0, -100, 1.5)[0].shape == (4,)
