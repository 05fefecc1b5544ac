"""Rules of engines: every fact has a source, and a version or a date finds those that held then."""

from __future__ import annotations

from importlib.resources import files
from tomllib import loads

import pytest

from dayzero.data.allocation import allocation, allocations

ENGINES = [entry.name.removesuffix(".toml") for entry in files("dayzero.data").joinpath("allocation").iterdir()
           if entry.name.endswith(".toml")]


@pytest.mark.parametrize("name", ENGINES)
def test_every_fact_has_a_source(name: str) -> None:
    content = loads(files("dayzero.data").joinpath("allocation", f"{name}.toml").read_text())
    assert set(content) <= {"names", "versions"}
    for entry in content["versions"]:
        assert set(entry) - {"since", "date", "sources"} == set(entry["sources"]), entry["since"]
        assert all(entry["sources"].values())


@pytest.mark.parametrize("name", ENGINES)
def test_versions_rise_and_their_dates_with_them(name: str) -> None:
    content = loads(files("dayzero.data").joinpath("allocation", f"{name}.toml").read_text())
    keys = [(tuple(map(int, entry["since"].split("."))), entry["date"]) for entry in content["versions"]]
    assert keys == sorted(keys) and [date for _, date in keys] == sorted(date for _, date in keys)


def test_a_version_or_a_date_finds_its_rules() -> None:
    # latent caches are kept compressed from v0.7.1 on (release notes of 2025-02-01)
    assert not allocation("vllm", "0.6.6").latent_cache  # type: ignore[union-attr]
    assert not allocation("vllm", "2024-12").latent_cache  # type: ignore[union-attr]
    for later in ("0.7.1", "v0.8.5", "2025-02-01", "2025-08", ""):
        assert allocation("vllm", later).latent_cache, later  # type: ignore[union-attr]
    assert allocation("sglang", "2025-07").utilization == 0.88  # type: ignore[union-attr]
    assert allocation("sglang", "0.5.6").utilization == "reserve"  # type: ignore[union-attr]


def test_one_engine_by_several_names() -> None:
    assert allocation("trtllm") == allocation("tensorrt-llm") is not None
    assert set(ENGINES) <= set(allocations())


def test_an_engine_that_nobody_described() -> None:
    assert allocation("no-such-engine") is None
