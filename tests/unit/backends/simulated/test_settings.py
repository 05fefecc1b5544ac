"""What the environment may say about the simulated accelerator."""

from __future__ import annotations

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from dayzero.backends.simulated.settings import Settings, operators_of, settings, size_of
from dayzero.errors import UsageError


def test_defaults_and_all_settings() -> None:
    assert settings({"PATH": "x"}) == Settings()
    given = {"DEVICES": "2", "MEMORY": "1.5GiB", "DENY": "aten.topk,aten.mm/bf16", "FALLBACK": "0"}
    assert settings({f"DAYZERO_SIMULATED_{name}": value for name, value in given.items()}) == Settings(
        devices=2, memory=1610612736, denied=("aten.topk", "aten.mm/bf16"), fallback=False)


@pytest.mark.parametrize(("name", "value", "told"), [
    ("DEVICES", "0", "'0' is no number of devices"), ("DEVICES", "65", "no number"), ("MEMORY", "4 cows", "no size"),
    ("MEMORY", "0GiB", "no size"), ("DENY", "topk", "'topk' is no operator"), ("DENY", "aten::topk", "no operator"),
    ("FALLBACK", "yes", "neither 0 nor 1"), ("DENYS", "aten.mm", "DAYZERO_SIMULATED_DENYS is no setting")])
def test_what_is_no_setting_is_refused(name: str, value: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        settings({f"DAYZERO_SIMULATED_{name}": value})


@each(st.integers(1, 10**15))
def test_sizes_in_bytes_are_taken_as_they_are(size: int) -> None:
    assert size_of(str(size)) == size


@each(st.text(max_size=30))
def test_any_text_is_a_list_of_operators_or_refused(text: str) -> None:
    try:
        assert all(name.count(".") >= 1 for name in operators_of(text))
    except UsageError as error:
        assert "is no operator" in error.message
