"""Norms against the library's own and against values worked out by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import layer_norm, rms_norm, silu

from dayzero.ops import impl

norm = impl.norm.norm


def test_by_hand() -> None:
    """3 and 4 have a mean square of 12.5; the weight counts from 1."""
    out, total = norm(torch.tensor([[3.0, 4.0]]), torch.tensor([0.0, 1.0]), None, None, None, 0.0, True, "", False, 1,
                      1.0, False)
    assert out.tolist() == [[pytest.approx(3 / 12.5**0.5), pytest.approx(2 * 4 / 12.5**0.5)]]
    assert total.tolist() == [[3.0, 4.0]]


@settings(max_examples=30, deadline=None)
@given(rms=st.booleans(), gated=st.booleans(), first=st.booleans(), groups=st.sampled_from([1, 2, 4]),
       residual=st.booleans(), wide=st.booleans(), half=st.booleans())  # fmt: skip
def test_it_is_the_library_s_and_its_shapes_are_known_without_values(
    rms: bool, gated: bool, first: bool, groups: int, residual: bool, wide: bool, half: bool
) -> None:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if half else torch.float32
    x, gate, more = (torch.randn(2, 3, 8, dtype=dtype) for _ in range(3))
    weight, bias = torch.randn(8), torch.randn(8)
    arguments = (x, weight, bias, gate if gated else None, more if residual else None, 1e-3, rms, "silu", first, groups,
                 0.0, wide)
    out, total = norm(*arguments)
    added = x.float() + more.float() if residual else x.float()
    value = added * silu(gate.float()) if gated and first else added
    parts = value.view(2, 3, groups, 8 // groups)
    parts = (rms_norm if rms else layer_norm)(parts, (8 // groups,), eps=1e-3)
    expected = parts.view(2, 3, 8) * weight + bias
    if gated and not first:
        expected = expected * silu(gate.float())
    torch.testing.assert_close(out, expected.to(dtype))
    torch.testing.assert_close(total, added.to(torch.float32 if wide else dtype))
    empty = norm(*(each.to("meta") if isinstance(each, torch.Tensor) else each for each in arguments))
    assert [(e.shape, e.dtype) for e in empty] == [(out.shape, out.dtype), (total.shape, total.dtype)]
