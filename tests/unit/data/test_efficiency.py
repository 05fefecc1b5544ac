"""Figures of devices and engines, and what those get of which none are known."""

from __future__ import annotations

import pytest

from dayzero.data.allocation import allocations
from dayzero.data.efficiency import Generation, efficiency


def test_figures_are_shares_and_calls_of_a_sensible_size() -> None:
    for one in efficiency().generations:
        for field in Generation.__struct_fields__:
            if field.endswith(("_rate", "_bytes", "_decode", "_prefill", "link")):
                assert 0.02 < getattr(one, field) < 2, field
    assert all(0.1 < one.tpot[0] < 1 < one.tpot[1] for one in efficiency().intervals)


def test_a_device_that_was_not_measured_is_like_the_nearest_of_its_maker() -> None:
    known = efficiency()
    measured = {arch: one for one in known.generations for arch in one.arch}
    assert known.generation("sm_90") == (measured["sm_90"], True)
    assert known.generation("sm_103") == (measured["sm_100"], False)
    assert known.generation("sm_80") == (measured["sm_90"], False)
    other, seen = known.generation("gfx942")
    assert not seen and other.arch == ()
    least, most = sorted(one.linear_bytes for one in measured.values())
    assert least <= other.linear_bytes <= most


def test_every_engine_whose_memory_is_known_has_figures() -> None:
    known = efficiency()
    assert all(known.engine(name)[1] for name in allocations())
    assert known.engine("something") == (known.engine("any")[0], False)


def test_a_release_of_an_engine_has_factors_of_its_own() -> None:
    known = efficiency()
    one = known.releases[0]
    plain, own = (known.figures("sm_90", one.engine, "bf16", "", version)[1] for version in (None, one.version))
    assert own.between == pytest.approx(plain.between * one.between)
    assert own.first == pytest.approx(plain.first * one.first)
    assert own.burst == pytest.approx(plain.burst * one.burst) and own.step == plain.step
    assert known.figures("sm_90", one.engine, "bf16", "", "never released")[1] == plain


def test_figures_of_prompts_are_those_of_the_scheme_of_experts() -> None:
    known = efficiency()
    for scheme in ("fp8", "mxfp4"):
        kernels = known.kernel(("sm_90",), "vllm", scheme)
        own = known.figures("sm_90", "vllm", "bf16", scheme)[1]
        assert kernels and own.first == kernels.first
        assert own.apart_decode == pytest.approx(known.engine("vllm")[0].apart_decode * kernels.apart_decode)


@pytest.mark.parametrize("kind", ["together", "apart", "unstated"])
def test_intervals(kind: str) -> None:
    assert all(efficiency().interval(f"{kind}, {how}").rows > 100 for how in ("measured", "not measured"))
