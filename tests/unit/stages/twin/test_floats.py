"""Narrow floats against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import twins

from dayzero.stages.twin import floats


def test_codes_of_an_8_bit_float_are_those_of_the_definition() -> None:
    codes = np.arange(256, dtype=np.uint8)
    mine = floats.from_plain(codes, "F8_E4M3")
    assert np.array_equal(mine, twins.numbers("F8_E4M3", codes), equal_nan=True)


@pytest.mark.parametrize(("dtype", "values"), [
    ("F8_E4M3", {448.0: 0x7E, -448.0: 0xFE, 1.0: 0x38, 2.0**-9: 0x01, 0.0: 0x00, 1000.0: 0x7E, 1.0625: 0x38,
                 1.1875: 0x3A}),
    ("F8_E5M2", {57344.0: 0x7B, 1.0: 0x3C, 2.0**-16: 0x01, -2.0: 0xC0}),  # arXiv:2209.05433, table 1
    ("F8_E4M3FNUZ", {240.0: 0x7F, 1.0: 0x40, -1.0: 0xC0}),
])  # fmt: skip
def test_known_8_bit_codes(dtype: str, values: dict[float, int]) -> None:
    codes = floats.to_fp8(np.array(list(values), np.float32), dtype)
    assert codes.tolist() == list(values.values())  # a middle goes to the even code, what is too large to the largest


@given(st.lists(st.floats(-448, 448, width=16), min_size=1, max_size=50))
def test_no_other_8_bit_float_is_nearer(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    levels = floats.from_plain(np.arange(256, dtype=np.uint8), "F8_E4M3")
    made = levels[floats.to_fp8(values, "F8_E4M3")]
    best = np.nanmin(np.abs(levels[None] - values[:, None]), axis=1)
    assert np.array_equal(np.abs(made - values), best)


def test_4_bit_floats_and_their_middles() -> None:
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -6, 9, 0.25, 0.75, 5, -0.2], np.float32)
    assert floats.to_fp4(values).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 15, 7, 0, 2, 6, 0]


def test_bf16_is_rounded_to_even() -> None:
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -2.5], np.float32)  # bf16 has 7 bits behind the point
    assert floats.to_bf16(values).tolist() == [0x3F80, 0x3F80, 0x3F82, 0xC020]
    assert floats.from_plain(floats.to_bf16(values), "BF16").tolist() == [1.0, 1.0, 1 + 2**-6, -2.5]


def test_powers_of_two() -> None:
    assert floats.to_power(np.array([1.0, 1.99, 2.0, 0.3, 0.0])).tolist() == [127, 127, 128, 125, 1]
    assert floats.from_plain(np.array([127, 128, 125], np.uint8), "F8_E8M0").tolist() == [1.0, 2.0, 0.25]
