"""Engine profiles: sourced facts, and targets that override or describe."""

from __future__ import annotations

import msgspec
import pytest

from dayzero.data import engine, engines
from dayzero.data.engines import profile, resolve_engine
from dayzero.errors import TargetError
from dayzero.schema.target import EngineRequest


@pytest.mark.parametrize("name", [one.name for one in engines()])
def test_every_fact_has_a_source(name: str) -> None:
    facts = msgspec.structs.asdict(profile(name).facts)
    assert {key for key, value in facts.items() if value is not None} == set(profile(name).sources)


def test_the_neutral_profile_is_what_the_documentation_promises() -> None:
    one = engine("any")
    assert (one.kv_replication, one.redundant_experts, one.head_padding, one.block_padding, one.vision) == (
        True, None, "none", False, "replicated")
    assert one.facts.schemes is None
    assert resolve_engine(EngineRequest()).name == "any"


def test_the_target_overrides_the_profile() -> None:
    one = resolve_engine(EngineRequest(name="vllm", redundant_experts=False, schemes=["bf16"], version="0.30"))
    assert one.redundant_experts is False
    assert one.kv_replication is True
    assert one.facts.schemes == ["bf16"]
    assert one.version == "0.30"
    assert one.sources["redundant_experts"] == "target file"
    assert "num_kv_head_replicas" in one.sources["kv_replication"]


def test_an_engine_that_the_target_describes_needs_no_profile() -> None:
    one = resolve_engine(EngineRequest(name="house-engine", schemes=["bf16"], kv_replication=False))
    assert (one.name, one.kv_replication, one.vision) == ("house-engine", False, "replicated")


def test_an_unknown_name_alone_is_an_error() -> None:
    with pytest.raises(TargetError, match="no engine is named 'house-engine'"):
        resolve_engine(EngineRequest(name="house-engine"))
    with pytest.raises(TargetError) as caught:
        resolve_engine(EngineRequest(name="vlm", schemes=["bf16"]))
    assert 'did you mean "vllm"?' in caught.value.hint
