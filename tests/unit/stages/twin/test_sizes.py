"""Numbers of twins: small, and divisible by what divides the originals'."""

from __future__ import annotations

from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.errors import UsageError
from dayzero.stages.twin.facts import Facts
from dayzero.stages.twin.sizes import choose, like


@given(st.integers(1, 40000), st.sampled_from([8, 16, 64, 256, 512, 1024]), st.integers(1, 600))
def test_a_smaller_number_divides_alike(size: int, modulus: int, least: int) -> None:
    made = like(size, modulus, least)
    assert gcd(made, modulus) == gcd(size, modulus)
    assert made <= size
    assert made >= min(least, size)


def facts(**values: int) -> Facts:
    return Facts(values=values, keys={name: (name,) for name in values})


DENSE = {"hidden_size": 4096, "vocab_size": 128256, "heads": 32, "kv_heads": 8, "head_dim": 128, "dense_width": 14336}


def test_heads_keep_their_ratio_and_their_divisors() -> None:
    made = choose(facts(**DENSE), {}, None, 2)
    assert (made["heads"], made["kv_heads"], made["hidden_size"]) == (16, 8, 256)
    assert made["vocab_size"] == 768  # 128256 = 2^8 * 501, and 768 = 2^8 * 3
    odd = choose(facts(**{**DENSE, "heads": 9, "kv_heads": 3, "hidden_size": 576}), {}, None, 2)
    assert (odd["heads"], odd["kv_heads"]) == (9, 3)
    assert odd["hidden_size"] % 9 == 0


def test_widths_keep_whole_blocks_for_every_rank() -> None:
    """1536 in blocks of 128 is 12 blocks: whole for 4 ranks, not for 8. 2048 is whole for 8."""
    blocks = {"expert_width": 128, "dense_width": 128}
    made = choose(facts(**DENSE, expert_width=1536, experts=128, top_k=8), blocks, None, 2)
    assert made["expert_width"] % (4 * 128) == 0
    assert made["expert_width"] % (8 * 128) != 0
    assert made["dense_width"] % (8 * 128) == 0


def test_heads_of_a_width_that_is_no_whole_block() -> None:
    """192 columns a head in blocks of 128: two heads for each of eight ranks."""
    made = choose(facts(**{**DENSE, "heads": 128, "kv_heads": 128}), {"heads": 2}, None, 2)
    assert made["heads"] == made["kv_heads"] == 16


def test_head_width_that_no_key_states_follows() -> None:
    derived = Facts(values=dict(DENSE), keys={name: (name,) for name in DENSE if name != "head_dim"},
                    derived={"head_dim": "hidden_size // heads"})
    made = choose(derived, {}, None, 2)
    assert made["hidden_size"] // made["heads"] == 16
    blocks = choose(derived, {"head_dim": 128}, None, 2)  # in groups of 128, a rank has whole ones
    assert blocks["hidden_size"] % (8 * 128) == 0


def test_experts_stay_in_groups_that_a_token_can_choose_from() -> None:
    grouped = facts(**DENSE, experts=256, top_k=8, expert_width=2048)
    grouped.values |= {"expert_groups": 8, "chosen_groups": 4}
    made = choose(grouped, {}, None, 2)
    assert made["experts"] % 8 == 0
    assert made["experts"] // 8 >= 2  # a group is judged by its two best
    assert made["top_k"] <= made["experts"] // 8 * 4


def test_equal_widths_stay_equal() -> None:
    equal = {"hidden_size": 2880, "dense_width": 2880, "expert_width": 2880}
    made = choose(facts(**{**DENSE, **equal}, experts=32, top_k=4), {"hidden_size": 32, "expert_width": 32}, None, 2)
    assert made["hidden_size"] == made["dense_width"] == made["expert_width"]
    assert made["hidden_size"] % 64 == 0
    assert made["hidden_size"] % 128 != 0  # as 2880


@pytest.mark.parametrize("scale", [0.5, 0, -1, 129, float("inf"), float("nan")])
def test_scales_that_cannot_be(scale: float) -> None:
    with pytest.raises(UsageError, match="cannot be"):
        choose(facts(**DENSE), {}, scale, 2)


def test_a_scale_is_about_kept() -> None:
    assert choose(facts(**DENSE), {}, 8, 2)["hidden_size"] == 512
    assert choose(facts(**DENSE), {}, 1, 2)["hidden_size"] == 4096
