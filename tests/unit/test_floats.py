"""Formats by their definitions, against values worked out by hand and, where it is installed, against torch."""

from __future__ import annotations

import numpy as np
import pytest

from dayzero.floats import FLOATS, ROUNDOFF, cast, decode, dtype_named, roundoff


# OCP 8-bit floating point specification, table 1: extremes of e4m3 and e5m2; microscaling: e8m0
@pytest.mark.parametrize(("dtype", "code", "value"), [
    ("F8_E4M3", 0x7E, 448.0), ("F8_E4M3", 0x01, 2.0**-9), ("F8_E4M3", 0x08, 2.0**-6), ("F8_E4M3", 0xB8, -1.0),
    ("F8_E4M3", 0x7F, np.nan), ("F8_E5M2", 0x7B, 57344.0), ("F8_E5M2", 0x7C, np.inf), ("F8_E5M2", 0x01, 2.0**-16),
    ("F8_E4M3FNUZ", 0x7F, 240.0),
    ("F8_E4M3FNUZ", 0x80, np.nan), ("F8_E5M2FNUZ", 0x01, 2.0**-17), ("F8_E8M0", 127, 1.0),
    ("F8_E8M0", 0, 2.0**-127), ("F8_E8M0", 255, np.nan)])
def test_single_codes(dtype: str, code: int, value: float) -> None:
    np.testing.assert_array_equal(decode(bytes([code]), dtype), np.float32([value]))


def test_wide_formats() -> None:
    assert decode(b"\x80\x3f\x20\xc0", "BF16").tolist() == [1.0, -2.5]
    assert decode(np.array([1.5], "<f2").tobytes(), "F16").tolist() == [1.5]
    assert decode(np.array([1.5, -2], "<f8").tobytes(), "F64").tolist() == [1.5, -2.0]


def test_rounding_to_nearest_even() -> None:
    values = np.float32([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, np.inf, -np.inf])
    assert cast(values, "BF16").tolist() == [1.0, 1 + 2**-6, 1 + 2**-7, np.inf, -np.inf]
    assert np.isnan(cast(np.float32([np.nan]), "BF16")).all()
    assert cast(np.float32([1e6]), "F16").tolist() == [np.inf]
    assert cast(np.float32([1e6, 0.3, -0.3, 0]), "F8_E4M3").tolist() == [448.0, 0.3125, -0.3125, 0.0]


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F8_E4M3", "F8_E5M2"])
def test_all_codes_survive_a_cast_to_their_own_dtype(dtype: str) -> None:
    raw = np.arange(65536, dtype="<u2").tobytes() if dtype in ("BF16", "F16") else bytes(range(256))
    values = decode(raw, dtype)
    values = values[np.isfinite(values)]
    np.testing.assert_array_equal(cast(values, dtype), values)


def test_against_torch() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    for dtype, theirs in (("BF16", torch.bfloat16), ("F16", torch.float16), ("F8_E4M3", torch.float8_e4m3fn)):
        expected = torch.from_numpy(values).to(theirs).float().numpy()
        if dtype == "F8_E4M3":  # ties only
            assert np.mean(cast(values, dtype) == expected) > 0.999
        else:
            np.testing.assert_array_equal(cast(values, dtype), expected)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
                                   "float8_e8m0fnu"])
def test_every_code_against_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    name = dtype.replace("float8_", "F8_").replace("fnuz", "FNUZ").replace("fnu", "").replace("fn", "")
    expected = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(decode(bytes(range(256)), name.replace("e", "E").replace("m", "M")), expected)


def test_spellings() -> None:
    assert [dtype_named(word) for word in ("bf16", "torch.bfloat16", "FP16", "float32", "F8_E5M2", "int8")] == [
        "BF16", "BF16", "F16", "F32", "F8_E5M2", None]
    assert "I32" not in FLOATS


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"])
def test_roundoff_is_the_largest_relative_error_of_rounding(dtype: str) -> None:
    values = np.random.default_rng(0).uniform(1, 2, 100_000)
    rounded = values.astype(np.float32) if dtype == "F32" else cast(values.astype(np.float32), dtype)
    worst = float(np.abs(rounded / values - 1).max())
    assert worst == pytest.approx(ROUNDOFF[dtype] / (1 + ROUNDOFF[dtype]), rel=0.01)  # half a step above 1
    assert roundoff(dtype) == ROUNDOFF[dtype] and roundoff("bf16") == 2.0**-8
