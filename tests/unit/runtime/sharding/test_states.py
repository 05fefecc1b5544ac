"""What the library's caches keep of parts are parts."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from transformers.cache_utils import LinearAttentionLayer  # noqa: E402

from dayzero.runtime.sharding.groups import Imagined  # noqa: E402
from dayzero.runtime.sharding.sharded import Sharded, is_sharded  # noqa: E402
from dayzero.runtime.sharding.states import states_in_parts  # noqa: E402


def test_the_state_of_a_convolution_is_cut_as_its_input_is() -> None:
    states_in_parts()
    group, layer, part = Imagined(2), LinearAttentionLayer(), torch.randn(1, 4, 6)
    for given in (part, torch.randn(1, 4, 1)):
        layer.update_conv_state(Sharded(given, 1, (8,), group), conv_kernel_size=3)
        part = torch.cat([part, given], -1) if given is not part else part
        state = layer.conv_states[0]
        assert is_sharded(state) and tuple(state.shape) == (1, 8, 3)
        assert torch.equal(state.part, part[..., -3:])
    assert not group.whole and not group.sent


def test_plain_states_are_as_ever() -> None:
    states_in_parts()
    states_in_parts()
    layer, given = LinearAttentionLayer(), torch.randn(1, 8, 6)
    layer.update_conv_state(given, conv_kernel_size=3)
    assert type(layer.conv_states[0]) is torch.Tensor and torch.equal(layer.conv_states[0], given[..., -3:])
