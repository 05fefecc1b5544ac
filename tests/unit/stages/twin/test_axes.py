"""What the sizes of tensors are made of."""

from __future__ import annotations

import pytest
from tests.support import twins

from dayzero.stages.read import read
from dayzero.stages.twin.axes import Axes
from dayzero.stages.twin.facts import release_facts
from dayzero.stages.twin.sizes import free_names


@pytest.fixture(scope="module")
def axes() -> Axes:
    card = read(twins.CARDS / "kimi-k3.toml")
    facts = release_facts(card)
    return Axes(facts, card.model, free_names(facts))


@pytest.mark.parametrize(("role", "name", "layers", "shape", "made"), [
    ("attention.q", "q_proj", (0, 1), (12288, 7168), ("linear_heads * linear_head_dim", "hidden_size")),
    ("attention.q_up", "q_b_proj", (3,), (18432, 1536), ("heads * (nope_dim + rope_dim)", "q_rank")),
    ("attention.kv_down", "kv_a_proj_with_mqa", (3,), (576, 7168), ("kv_rank + rope_dim", "hidden_size")),
    ("router", "gate", (1,), (896, 7168), ("experts + zero_experts", "hidden_size")),
    ("experts.down", "experts.{E}.w2", (1,), (3584, 3072), ("expert_input", "expert_width")),
    ("linear.decay", "A_log", (0,), (128,), (128,)),  # 96 heads: nothing in the config is 128 but widths of heads
    ("other", "strange", (0,), (14336, 777), ("2 * hidden_size", 777)),
    ("vision", "vision_tower.wqkv", (), (4608, 1024),
     ("3 * tower.vision_config.qkv_hidden_size", "tower.vision_config.vt_hidden_size")),
])  # fmt: skip
def test_expressions(axes: Axes, role: str, name: str, layers: tuple[int, ...], shape: tuple[int, ...],
                     made: tuple[object, ...]) -> None:
    assert axes.of(name, role, layers, shape) == made


def test_what_nothing_explains_is_told(axes: Axes) -> None:
    axes.of("odd.weight", "other", (0,), (777, 7168))
    assert axes.kept["odd.weight"] == (777,)
