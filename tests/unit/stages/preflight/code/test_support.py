"""The rule about versions that know a kind of model: facts of a target, and those of a profile."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.support.shipped_code import AUTO_MAP, case, engine

from dayzero.data.engines import resolve_engine
from dayzero.schema import Target
from dayzero.schema.target import EngineRequest
from dayzero.stages.preflight.code import support

CLASS = "class TinyForCausalLM:\n    pass\n"


def told(rule, *args: object, **config: object) -> set[tuple[str, str]]:
    return {(finding.severity, finding.subject) for finding in rule(case(*args, **config))}


# deepseek-ai/DeepSeek-V3.2 (huggingface/transformers#42590): known since 5.11.0; as text 5.3.0 is larger
SINCE = {"deepseek_v32": "5.11.0"}


@pytest.mark.parametrize(("on", "found"), [
    (engine(transformers="5.3.0", supported_since=SINCE), {("error", "deepseek_v32")}),
    (engine("transformers", "5.3.0", supported_since=SINCE), {("error", "deepseek_v32")}),
    (engine("some", "5.3.0", supported_since=SINCE), {("error", "deepseek_v32")}),
    (engine(transformers="5.11.0", supported_since=SINCE), set()),
    (engine(transformers="5.100", supported_since=SINCE), set()),
    (engine(transformers="5.3.0", supported_since={"other": "5.11.0"}), set()),
    (engine(supported_since=SINCE), set()), (engine(transformers="main", supported_since=SINCE), set()),
    (engine("some", "0.19", {"supported_since": "its releases"}, transformers="4.0", supported_since=SINCE | {
        "deepseek_v32": "0.11"}), set()),
    (engine("some", "0.9", {"supported_since": "its releases"}, transformers="5.3.0", supported_since={
        "DeepseekV32ForCausalLM": "0.11"}), {("error", "deepseek_v32")}),
])
def test_a_kind_of_model_that_is_newer(tmp_path: Path, on: Target, found: set[tuple[str, str]]) -> None:
    config = {"model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"]}
    assert told(support.arch_unsupported, tmp_path, {}, on, **config) == found


def test_a_kind_of_model_inside_of_another(tmp_path: Path) -> None:
    on = engine(transformers="4.56.2", supported_since={"kimi_linear": "5.1", "moonvit": "4.50"})
    found = list(support.arch_unsupported(case(tmp_path, {}, on, model_type="kimi_k3", text_config={
        "model_type": "kimi_linear"}, vision_config={"model_type": "moonvit"})))
    assert [(one.subject, one.facts) for one in found] == [
        ("kimi_linear", {"needs": "5.1", "installed": "4.56.2"})]


def test_the_releases_own_code_can_stand_in(tmp_path: Path) -> None:
    on = engine(transformers="5.3.0", supported_since={"tiny": "5.11.0"})
    files = {"modeling_tiny.py": CLASS, "configuration_tiny.py": "class TinyConfig:\n    pass\n"}
    assert told(support.arch_unsupported, tmp_path, files, on, auto_map=AUTO_MAP) == {("warning", "tiny")}
    bare = told(support.arch_unsupported, tmp_path / "bare", {"x.txt": ""}, on, auto_map=AUTO_MAP)
    assert bare == {("error", "tiny")}


def profile(name: str, version: str | None, **facts: object) -> Target:
    """A target whose engine is a shipped profile."""
    return msgspec.structs.replace(engine(), engine=resolve_engine(EngineRequest(
        name=name, version=version, **facts)))  # type: ignore[arg-type]


# vllm/model_executor/models/registry.py: DeepseekV32ForCausalLM is in 0.11.0 and not in 0.10.2;
# CONFIG_MAPPING_NAMES of transformers: deepseek_v32 is in 5.11.0 and not in 5.10
@pytest.mark.parametrize(("on", "found"), [
    (profile("vllm", "0.10.2"), {("error", "deepseek_v32")}), (profile("vllm", "0.11.0"), set()),
    (profile("vllm", "0.40.0"), set()), (profile("vllm", None), {("info", "deepseek_v32")}),
    (profile("vllm", "a-branch"), {("info", "deepseek_v32")}),
    (profile("sglang", "0.5.2"), {("error", "deepseek_v32")}),
    (profile("transformers", "5.10.2"), {("error", "deepseek_v32")}), (profile("transformers", "5.11.0"), set()),
    (profile("vllm", "0.10.2", supported_since={}), set()), (profile("any", None), set())])
def test_what_a_profile_says(tmp_path: Path, on: Target, found: set[tuple[str, str]]) -> None:
    config = {"model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"]}
    assert told(support.arch_unsupported, tmp_path, {}, on, **config) == found


@pytest.mark.parametrize("name", ["vllm", "sglang", "transformers"])
@pytest.mark.parametrize("version", [None, "0.1", "99"])
def test_what_is_in_no_list_is_never_an_error(tmp_path: Path, name: str, version: str | None) -> None:
    config = {"model_type": "of_tomorrow", "architectures": ["OfTomorrowForCausalLM"]}
    one, = support.arch_unsupported(case(tmp_path, {}, profile(name, version), **config))
    assert (one.severity, one.subject, one.facts["installed"]) == ("info", "of_tomorrow", version)
    assert one.facts["listed_version"] == profile(name, None).engine.read_at


def test_a_class_older_than_the_list_is_never_too_new(tmp_path: Path) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    for version in (None, "9"):
        assert told(support.arch_unsupported, tmp_path, {}, profile("vllm", version), **config) == set()


# LlamaForCausalLM is in the oldest list of each of these; vllm's starts at 0.8.5, transformers' at 4.48.0
@pytest.mark.parametrize(("on", "found"), [
    (profile("vllm", "0.6.0"), {("info", "llama")}), (profile("vllm", "0.8.5"), set()),
    (profile("transformers", "4.30.0"), {("info", "llama")}), (profile("transformers", "4.48.0"), set()),
    (profile("tensorrt-llm", "0.5.0"), set())])
def test_a_version_from_before_the_list(tmp_path: Path, on: Target, found: set[tuple[str, str]]) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    assert told(support.arch_unsupported, tmp_path, {}, on, **config) == found


def test_a_config_that_names_no_kind_of_model(tmp_path: Path) -> None:
    assert told(support.arch_unsupported, tmp_path, {}, model_type=None, architectures=[]) == {
        ("warning", "model_type")}
    assert told(support.arch_unsupported, tmp_path, {}, model_type="tiny", architectures=None) == set()


def test_a_card_that_names_no_kind_of_model(tmp_path: Path) -> None:
    as_json = case(tmp_path, {}, model_type=None, architectures=[])
    card = msgspec.structs.replace(as_json.release, files=())
    assert list(support.arch_unsupported(support.Case(card, as_json.target))) == []
