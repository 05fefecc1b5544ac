"""Patterns of errors that are made here, each of another kind: the first one told is what was done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.stages.check.patterns import Facts, describe

ROWS, WIDTH = 60, 64
Array = np.ndarray[Any, Any]


def values(seed: int = 0, rows: int = ROWS, width: int = WIDTH) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def noisy(reference: Array) -> Array:
    """bf16's rounding errors, as every real run has them."""
    return (reference * (1 + 2**-9 * values(99, *reference.shape))).astype(np.float32)


def first(reference: Array, candidate: Array, **facts: Any) -> tuple[str, str]:
    found = describe(reference, candidate, facts=Facts(**facts))
    assert found, "no pattern"
    assert found[0].explained > 0.9
    return found[0].name, found[0].words


def test_equal_arrays_have_no_pattern_and_rounding_noise_has_none_either() -> None:
    assert describe(values(), values()) == ()
    assert describe(values(), noisy(values())) == ()


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="not one shape"):
        describe(values(), values(rows=3))
    assert describe(values(rows=0), values(rows=0)) == ()


def test_a_factor_is_told_with_its_size() -> None:
    name, words = first(values(), noisy(values() * 2.5))
    assert name == "scale" and "2.5" in words.replace("2.49", "2.5").replace("2.50", "2.5")


def test_the_other_sign() -> None:
    assert first(values(), noisy(-values()))[0] == "sign"


def test_one_factor_for_each_channel_is_told_apart_from_one_for_each_token() -> None:
    factors = np.random.default_rng(1).uniform(0.5, 2, WIDTH).astype(np.float32)
    assert first(values(), noisy(values() * factors))[0] == "scale of channels"
    assert first(values().T.copy(), noisy((values() * factors).T))[0] == "scale of rows"


def test_a_dropped_bias_is_an_offset() -> None:
    assert first(values() + 3 * values(5)[0], noisy(values()))[0] == "offset"


def test_the_share_of_a_rank() -> None:
    wrong = values()
    wrong[:, 32:48] = values(7)[:, 32:48]
    name, words = first(values(), noisy(wrong))
    assert name == "rank boundary" and "rank 2 of 4" in words


def test_heads_that_are_no_share_of_a_rank() -> None:
    wrong = values()
    wrong[:, 8:16], wrong[:, 40:48] = values(7)[:, 8:16], values(7)[:, 40:48]
    name, words = first(values(), noisy(wrong), heads=(8,))
    assert name == "heads" and "heads 1 and 5 of 8" in words


def test_every_other_channel() -> None:
    wrong = values()
    wrong[:, 1::2] = values(7)[:, 1::2]
    name, words = first(values(), noisy(wrong))
    assert name == "every n-th channel" and "one channel in 2" in words


def test_a_block_of_channels_that_is_no_share() -> None:
    wrong = values(width=640)
    wrong[:, 128:256] *= 3
    found = describe(values(width=640), noisy(wrong), facts=Facts(ranks=(2, 4)))
    assert found[0].name == "quantisation block" and (found[0].first, found[0].end) == (128, 256)


@pytest.mark.parametrize(("order", "words"), [
    (np.roll(np.arange(WIDTH), WIDTH // 2), "two halves are exchanged"),
    (np.arange(WIDTH).reshape(2, -1).T.reshape(-1), "halves are interleaved"),
    (np.arange(WIDTH)[::-1], "reversed"),
    (np.roll(np.arange(WIDTH), 1), "shifted by one"),
])  # fmt: skip
def test_permutations_are_told_by_name(order: Array, words: str) -> None:
    name, told = first(values(), noisy(values()[:, order]))
    assert name == "permutation" and words in told


def test_two_channels_for_each_other() -> None:
    wrong = values()
    wrong[:, [3, 40]] = wrong[:, [40, 3]]
    name, words = first(values(), noisy(wrong))
    assert name == "permutation" and "channels 3 and 40 are exchanged" in words


def test_the_layout_of_rotary_pairs_within_each_head() -> None:
    order = (np.arange(0, WIDTH, 16)[:, None] + np.arange(16).reshape(2, -1).T.reshape(-1)).reshape(-1)
    name, words = first(values(), noisy(values()[:, order]))
    assert name == "permutation" and "in each group of 16: halves are interleaved" in words


def test_tokens_of_an_expert() -> None:
    chosen = np.random.default_rng(2).integers(0, 8, (ROWS, 1))
    wrong = values()
    wrong[chosen[:, 0] == 5] = values(7)[chosen[:, 0] == 5]
    found = describe(values(), noisy(wrong), facts=Facts(experts=chosen))
    assert found[0].name == "experts" and found[0].first == 5


def test_positions_from_a_limit_on() -> None:
    positions = np.tile(np.arange(30), 2)
    wrong = values()
    wrong[positions >= 16] = values(7)[positions >= 16]
    name, words = first(values(), noisy(wrong), positions=positions, sequences=np.repeat([0, 1], 30))
    assert name == "positions" and "from position 16 on" in words


@pytest.mark.parametrize(("at", "name"), [(0, "first token"), (29, "last token")])
def test_the_first_or_the_last_token(at: int, name: str) -> None:
    positions = np.tile(np.arange(30), 2)
    wrong = values()
    wrong[positions == at] = values(7)[positions == at]
    assert first(values(), noisy(wrong), positions=positions, sequences=np.repeat([0, 1], 30))[0] == name


def test_one_sequence_of_several() -> None:
    wrong = values()
    wrong[20:40] = values(7)[20:40]
    name, words = first(values(), noisy(wrong), sequences=np.repeat([0, 1, 2], 20))
    assert name == "sequences" and "sequence 1 of 3" in words


def test_values_of_the_token_before() -> None:
    wrong = values()
    wrong[1:] = values()[:-1]
    assert first(values(), noisy(wrong))[0] == "shift of rows"


def test_one_value_that_is_no_number() -> None:
    wrong = noisy(values())
    wrong[4, 9] = np.nan
    name, words = first(values(), wrong, positions=np.arange(ROWS))
    assert name == "no numbers" and "row 4 (position 4), channel 9" in words


def test_a_value_that_the_reference_has_not_either_is_no_error() -> None:
    both = values()
    both[2, 2] = np.nan
    assert describe(both, both) == ()


def test_rounding_to_a_coarser_type() -> None:
    coarse = (values().view(np.uint32) & 0xFFFF0000).view(np.float32)
    rounded = np.where(np.abs(values() - coarse) * 2 < np.abs(coarse) * 2**-7, coarse, coarse)
    found = describe(rounded * 0 + values(), _bf16(values()))
    assert [each.name for each in found] == ["rounding"] and "bf16" in found[0].words


def _bf16(single: Array) -> Array:
    """To nearest, ties to even (IEEE 754)."""
    bits = single.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**31), st.floats(-4, 4, width=32))
def test_any_two_arrays_are_described_without_errors(rows: int, width: int, seed: int, factor: float) -> None:
    generator = np.random.default_rng(seed)
    reference = generator.standard_normal((rows, width)).astype(np.float32)
    candidate = np.where(generator.random((rows, width)) < 0.3, np.float32(factor), reference)
    candidate[generator.random((rows, width)) < 0.05] = np.inf
    for each in describe(reference, candidate, facts=Facts(heads=(2, 3), positions=np.arange(rows))):
        assert each.explained <= 1.0 + 1e-9 and each.words and not np.isnan(each.explained)


def table(base: float, width: int = 16, factor: float = 1.0, interleaved: bool = False) -> Array:
    """Cosines of 40 positions of two sequences, as rotary embeddings make them."""
    angles = POSITIONS["positions"][:, None] / factor * base ** (-np.arange(0, width, 2) / width)
    return np.cos(np.repeat(angles, 2, 1) if interleaved else np.tile(angles, 2)).astype(np.float32)


POSITIONS = {"positions": np.concatenate([np.arange(25), np.arange(15)]), "sequences": np.repeat([0, 1], [25, 15])}
"""Of the rows of two sequences."""


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_table_of_another_rotary_base_is_no_matter_of_weights(interleaved: bool) -> None:
    right, wrong = (table(base, interleaved=interleaved) for base in (500000.0, 10000.0))
    name, words = first(right, wrong, **POSITIONS)
    assert name == "rotary table" and "base of 1e+04 where the reference has 5e+05" in words and "no weight" in words


def test_angles_that_are_scaled_have_no_base_and_the_same_angles_are_no_other_table() -> None:
    name, words = first(table(10000.0), table(10000.0, factor=4.0), **POSITIONS)
    assert name == "rotary table" and "base of" not in words
    assert first(table(10000.0), 1.2 * table(10000.0), **POSITIONS)[0] == "scale"
    assert first(values(rows=40), noisy(values(rows=40) * 2.5), **POSITIONS)[0] == "scale"


def test_sequences_that_are_wrong_are_told_when_their_error_fades() -> None:
    """As of a state that is carried over: no row stands out, and one sequence is right."""
    reference = values(rows=40)
    size = np.where(POSITIONS["sequences"] == 1, 0.7 ** POSITIONS["positions"], 0.0)[:, None]
    wrong = noisy((reference + size * values(5, rows=40)).astype(np.float32))
    name, words = first(reference, wrong, **POSITIONS)
    assert name == "sequences" and "only sequence 1 of 2" in words
