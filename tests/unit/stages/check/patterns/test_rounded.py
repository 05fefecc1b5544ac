"""Levels that quantisation leaves, in matrices that the `gguf` package and torch quantise here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.floats import cast
from dayzero.stages.check.patterns import describe, rounding

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
Array = np.ndarray[Any, Any]


def matrix(seed: int = 0, rows: int = 12, columns: int = 256) -> Array:
    """Weights as of a linear layer, in bf16."""
    return cast((np.random.default_rng(seed).standard_normal((rows, columns)) * 0.02).astype(np.float32), "BF16")


def quantised(values: Array, kind: str, dtype: str = "BF16") -> Array:
    form = gguf.GGMLQuantizationType[kind]
    return cast(gguf.quants.dequantize(gguf.quants.quantize(values, form), form), dtype)


def integers(values: Array, bits: int, block: int, most: float) -> Array:
    parts = values.reshape(-1, block)
    scale = np.abs(parts).max(1, keepdims=True) / most
    made = np.clip(np.rint(parts / scale), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * scale
    return cast(made.reshape(values.shape).astype(np.float32), "BF16")


def floats(values: Array, block: int) -> Array:
    parts = torch.from_numpy(values.reshape(-1, block))
    scale = parts.abs().amax(1, keepdim=True) / 448
    return cast(((parts / scale).to(torch.float8_e4m3fn).float() * scale).reshape(values.shape).numpy(), "BF16")


@pytest.mark.parametrize(("kind", "told"), [
    ("Q4_0", "16 levels in blocks of 32"), ("Q4_1", "16 levels in blocks of 32"), ("Q5_0", "32 levels in blocks of 32"),
    ("Q5_1", "32 levels in blocks of 32"), ("Q8_0", "256 levels in blocks of 32"),
])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_types_of_gguf(kind: str, told: str, dtype: str) -> None:
    found = rounding(matrix(), quantised(matrix(), kind, dtype))
    assert found is not None and found.told == told and found.nearest and found.share > 0.95


@pytest.mark.parametrize(("made", "told"), [
    (integers(matrix(), 4, 64, 7.5), "16 levels in blocks of 64"),
    (integers(matrix(), 4, 128, 7), "16 levels in blocks of 128"),
    (integers(matrix(), 8, 256, 127), "256 levels with one scale for a row or more"),
    (floats(matrix(), 128), "levels of an 8-bit float with 3 bits of fraction in blocks of 128"),
    (floats(matrix(), 256), "levels of an 8-bit float with 3 bits of fraction with one scale for a row or more"),
])
def test_blocks_of_integers_and_floats(made: Array, told: str) -> None:
    found = rounding(matrix(), made)
    assert found is not None and found.told == told


def test_powers_of_two_as_scales_are_told_from_even_levels() -> None:
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    parts = matrix().reshape(-1, 32)
    scale = 2.0 ** (np.floor(np.log2(np.abs(parts).max(1, keepdims=True))) - 2)
    near = table[np.abs(np.abs(parts / scale)[..., None] - table).argmin(-1)]
    found = rounding(matrix(), (np.sign(parts) * near * scale).reshape(12, 256).astype(np.float32))
    assert found is not None and found.told == "16 levels of a 4-bit float in blocks of 32"


def test_a_reference_that_lies_on_coarser_levels_itself() -> None:
    """The released weights may have been quantised before: the error says by which levels the candidate was made."""
    reference = quantised(matrix(), "Q4_1")
    assert rounding(reference, quantised(reference, "Q8_0")).told == "256 levels in blocks of 32"
    assert rounding(reference, quantised(reference, "Q4_0")).told == "16 levels in blocks of 32"
    assert rounding(reference, reference) is None


def test_levels_of_other_weights_are_no_rounding_of_these() -> None:
    assert rounding(matrix(), quantised(matrix(1), "Q4_0")) is None
    assert rounding(matrix(), quantised(np.roll(matrix(), 1, 0), "Q4_0")) is None
    assert rounding(matrix(), quantised(matrix() * 1.5, "Q4_0")) is None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-4, 1.0), st.sampled_from(["F32", "F16", "BF16"]))
def test_noise_that_is_no_rounding_is_not_called_so(seed: int, size: float, dtype: str) -> None:
    noise = np.random.default_rng(seed).standard_normal((12, 256)) * 0.02 * size
    assert rounding(matrix(), cast((matrix() + noise).astype(np.float32), dtype)) is None


def test_what_a_cast_does_is_not_called_quantisation() -> None:
    values = (np.random.default_rng(3).standard_normal((12, 256))).astype(np.float32)
    assert rounding(values, cast(values, "BF16")) is None and rounding(values, cast(values, "F16")) is None


def test_rows_of_an_embedding_are_described() -> None:
    found = describe(matrix(), quantised(matrix(), "Q4_0"))
    assert found[0].name == "quantisation"
    assert found[0].words == ("values lie on 16 levels in blocks of 32, each the nearest to the reference's value: "
                              "noise of quantised weights")
