"""Whose shares a plan is timed with."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.plan_models import dense, target

from dayzero.data import device
from dayzero.data.efficiency import efficiency
from dayzero.data.engines import resolve_engine
from dayzero.placement.many import Layouts
from dayzero.schema import Layout, Target
from dayzero.schema.target import EngineRequest
from dayzero.stages.plan.evaluate import evaluate
from dayzero.stages.plan.times.speeds import speeds

RELEASE = next(one for one in efficiency().releases if one.engine == "vllm")


def on(version: str | None, **workload: object) -> Target:
    """One H100 under an engine in a version."""
    made = target(on=device("h100"), **workload)
    return msgspec.structs.replace(made, engine=resolve_engine(EngineRequest(name=RELEASE.engine, version=version),
                                                               Path()))


def test_a_release_with_figures_of_its_own_is_planned_with_those_that_score_takes() -> None:
    made = speeds(on(RELEASE.version), dense())
    scored = efficiency().figures("sm_90", RELEASE.engine, "bf16", "bf16", RELEASE.version)[1]
    assert made.known.engine.between == scored.between and made.known.engine.burst == scored.burst
    assert RELEASE.version in made.source


@pytest.mark.parametrize("version", [None, "0.0.1"])
def test_any_other_version_is_planned_with_the_engines_own(version: str | None) -> None:
    made = speeds(on(version), dense())
    assert made.known.engine == efficiency().figures("sm_90", RELEASE.engine, "bf16", "bf16")[1]
    assert "does otherwise" not in made.source


def test_the_time_between_tokens_of_a_plan_is_that_of_the_release() -> None:
    for workload, accuracy in (({}, 1e-9), ({"arrival_rate": 0.5}, 0.02)):
        plain, own = (evaluate(dense(), on(version, **workload), Layouts.of([Layout()])).tpot_s
                      for version in (None, RELEASE.version))
        assert np.allclose(own / plain, RELEASE.between, rtol=accuracy)
