"""Engine profiles: sourced facts, and targets that override or describe."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from packaging.version import Version

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


def test_an_engine_has_other_names() -> None:
    assert engine("trtllm") == engine("tensorrt-llm")
    assert resolve_engine(EngineRequest(name="trtllm", vision="split")).name == "tensorrt-llm"


def test_an_unknown_name_alone_is_an_error() -> None:
    with pytest.raises(TargetError, match="no engine is named 'house-engine'"):
        resolve_engine(EngineRequest(name="house-engine"))
    with pytest.raises(TargetError) as caught:
        resolve_engine(EngineRequest(name="vlm", schemes=["bf16"]))
    assert 'did you mean "vllm"?' in caught.value.hint


OWN = '''name = "house-engine"
read_at = "2.1"
complete = ["supported_since"]
[facts]
kv_replication = false
[facts.supported_since]
LlamaForCausalLM = ""
[sources]
kv_replication = "our own code"
supported_since = "our own list"
'''


def test_a_file_of_the_users_own_lies_beside_the_target(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "engine.toml").write_text(OWN)
    one = resolve_engine(EngineRequest(name="mine/engine.toml", version="2.0", vision="split"), tmp_path)
    assert (one.name, one.version, one.read_at, one.complete) == ("house-engine", "2.0", "2.1", ("supported_since",))
    assert (one.kv_replication, one.vision) == (False, "split")
    assert one.sources == {"kv_replication": "our own code", "supported_since": "our own list", "name": "target file",
                           "version": "target file", "vision": "target file"}
    assert engine(str(tmp_path / "mine" / "engine.toml")).name == "house-engine"


@pytest.mark.parametrize(("text", "message"), [
    (OWN.replace('kv_replication = "our own code"\n', ""), "the fact kv_replication has no source"),
    (OWN.replace("[sources]", '[sources]\nvision = "x"'), "vision, which is no fact"),
    (OWN.replace("kv_replication = false", 'kv_replication = "no"'), "Expected bool"),
    (OWN.replace("kv_replication = false", "kv_replications = false"), "unknown field kv_replications"),
    ("name = ", "is not TOML"), (None, "is no file"),
])
def test_what_is_wrong_in_a_file_of_the_users_own(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(TargetError, match=r"mine\.toml") as caught:
        resolve_engine(EngineRequest(name="mine.toml"), tmp_path)
    assert message in caught.value.message


@pytest.mark.parametrize("name", [one.name for one in engines()])
def test_shipped_lists_of_versions_are_versions(name: str) -> None:
    one = profile(name)
    assert all(not since or Version(since) for since in (one.facts.supported_since or {}).values())
    if one.read_at and not one.read_at.startswith("commit "):
        assert all(not since or Version(since) <= Version(one.read_at)
                   for since in (one.facts.supported_since or {}).values())
    if one.read_from:
        assert all(not since or Version(one.read_from) < Version(since)
                   for since in (one.facts.supported_since or {}).values())


# the first releases with the class or the model_type in registry.py, EntryClass and CONFIG_MAPPING_NAMES
@pytest.mark.parametrize(("name", "kind", "since"), [
    ("vllm", "GptOssForCausalLM", "0.10.1"), ("vllm", "Qwen3NextForCausalLM", "0.10.2"),
    ("vllm", "DeepseekV32ForCausalLM", "0.11.0"), ("vllm", "KimiK3ForConditionalGeneration", "0.27.0"),
    ("vllm", "LlamaForCausalLM", ""), ("sglang", "DeepseekV32ForCausalLM", "0.5.3"),
    ("sglang", "KimiLinearForCausalLM", "0.5.4.post2"), ("sglang", "LlamaForCausalLM", ""),
    ("transformers", "deepseek_v32", "5.11.0"), ("transformers", "qwen3_moe", "4.51.0"),
    ("transformers", "kimi_linear", "5.17.0"), ("tensorrt-llm", "GptOssForCausalLM", "1.1.0rc0"),
    ("vllm-ascend", "DeepseekV32ForCausalLM", "0.11.0rc0")])
def test_since_when_an_engine_knows_a_kind_of_model(name: str, kind: str, since: str) -> None:
    assert (profile(name).facts.supported_since or {})[kind] == since
