"""A short, repeatable run of the fuzzing in benchmarks/fuzz_preflight.py: what has to be true of any release at all."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.support.fuzz_changes import Written, cases
from tests.support.fuzz_outcome import MOST_BYTES, outcome, peak_bytes
from tests.support.fuzz_seeds import Draft, seeds


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Draft, ...]:
    return seeds(tmp_path_factory.mktemp("seeds"))


@pytest.mark.slow
def test_what_fuzzing_starts_from_is_right(drafts: tuple[Draft, ...], tmp_path: Path) -> None:
    """Or else it would only ever look at the first refusal."""
    for number, draft in enumerate(drafts):
        case = tmp_path / str(number)
        found = outcome(Written(copy.deepcopy(draft), []).write(case), case / "target.toml", tmp_path / "cache")
        assert found.end in ("pass", "warn", "fail") and not found.problem, (number, found)


def test_a_read_outside_would_be_seen(drafts: tuple[Draft, ...], tmp_path: Path) -> None:
    release = Written(copy.deepcopy(drafts[-1]), []).write(tmp_path / "case")
    found = outcome(release, Path("/etc/hostname"), tmp_path / "cache")
    assert found.end == "TargetError" and not found.problem  # the target may be anywhere
    (release / "config.json").unlink()
    (release / "config.json").symlink_to(tmp_path / "case" / "outside" / "secret.json")
    assert outcome(release, tmp_path / "case" / "target.toml", tmp_path / "cache").end == "UnsafePathError"


@pytest.mark.slow
@settings(max_examples=80, deadline=None, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink],
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(pick=st.integers(0, 999), drawn=cases, values=st.booleans())
def test_any_release_and_any_target_end_in_findings_or_two_lines(drafts: tuple[Draft, ...], pick: int, drawn: list[Any],
                                                                 values: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        case = Path(folder, "case")
        release = Written(copy.deepcopy(drafts[pick % len(drafts)]), drawn).write(case)
        peak_bytes(forget=True)
        before = peak_bytes()
        found = outcome(release, case / "target.toml", Path(folder, "cache"), values=values,
                        planned=len(drawn) % 4 == 0)
        assert not found.problem, f"{found.problem}\n{found.trace}"
        assert peak_bytes() - before < MOST_BYTES
