"""The rules on a small release that is right, and on copies of it with one thing wrong each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
from tests.support import tiny_release as tiny
from tests.support.plan_models import device, target

from dayzero.placement import CAUSES
from dayzero.schema import Findings, Layout, Target, from_json, to_json
from dayzero.schema.target import Declared, EngineRequest
from dayzero.stages.preflight import overview, preflight, rules, rules_table
from dayzero.stages.preflight.engine import rules as engine_rules
from dayzero.stages.preflight.output.docs import rule_pages
from dayzero.stages.read import read

SMALL = target(1, concurrency=1, input_tokens=16, output_tokens=16, max_batched_tokens=16)


@pytest.fixture
def check(tmp_path: Path):
    def run(tensors: tiny.Tensors, config: dict[str, object] = tiny.CONFIG, on: Target = SMALL,
            **how: object) -> Findings:
        folder = tiny.write(tmp_path / "release", tensors, config, **how)
        return preflight(read(folder, cache=tmp_path / "cache"), on)

    return run


def told(found: Findings) -> set[tuple[str, str, str]]:
    return {(finding.severity, finding.rule, finding.subject) for finding in found.findings}


def dropped(tensors: tiny.Tensors, *names: str) -> tiny.Tensors:
    assert set(names) <= set(tensors)
    return {name: what for name, what in tensors.items() if name not in names}


@pytest.mark.parametrize(("tensors", "config"), [
    (tiny.dense_tensors(), tiny.CONFIG), (tiny.expert_tensors(), tiny.EXPERT_CONFIG)])
def test_a_good_release_has_no_findings(check, tensors: tiny.Tensors, config: dict[str, object]) -> None:
    found = check(tensors, config)
    assert told(found) == set()
    assert found.verdict == "pass"
    assert from_json(to_json(found), Findings) == found


def test_facts_by_hand(check) -> None:
    facts = check(tiny.expert_tensors(), tiny.EXPERT_CONFIG).facts
    attention = 64 * 16 * (9 + 3 + 3 + 9)
    per_layer = attention + 2 * 64 + 4 * 64 + 4 * 3 * 96 * 64
    assert facts["params_total"] == 12 * per_layer + 128 * 64 + 64
    assert (facts["layers"], facts["moe_layers"], facts["experts"], facts["top_k"]) == (12, 12, 4, 2)
    assert facts["attention_layers"] == {"full": 12}
    assert facts["kv_bytes_per_token"] == 12 * 2 * 3 * 16 * 2
    assert facts["state_bytes_per_sequence"] == 0
    assert facts["valid_tp"] == [1]
    assert facts["bytes_per_device"]["weights"] == facts["checkpoint_bytes"]
    assert sum(facts["weights_per_device"].values()) == facts["checkpoint_bytes"]
    assert facts["weights_per_device"]["attention"] == 12 * attention * 2
    assert facts["max_context"] == tiny.EXPERT_CONFIG["max_position_embeddings"]  # there is room for far more


def _without(tensors: tiny.Tensors, part: str, new: str | None = None) -> tiny.Tensors:
    """Every tensor with `part` in its name is called otherwise, or gone."""
    return {name.replace(part, new) if new else name: what for name, what in tensors.items()
            if new or part not in name}


@pytest.mark.parametrize(("part", "role"), [
    ("model.norm", "model.norm.weight"), ("model.embed_tokens", "model.embed_tokens.weight"),
    ("input_layernorm", "norm"), ("q_proj", "attention.q"), ("k_proj", "attention.k"), ("v_proj", "attention.v"),
    ("o_proj", "attention.o"), ("gate_proj", "mlp.gate"), ("up_proj", "mlp.up"), ("down_proj", "mlp.down")])
def test_a_family_that_no_layer_has(check, part: str, role: str) -> None:
    config = {**tiny.CONFIG, "hidden_act": "silu"}
    assert told(check(tiny.dense_tensors(), config)) == set()
    assert ("error", "weights-missing", role) in told(check(_without(tiny.dense_tensors(), part), config))


@pytest.mark.parametrize(("part", "role"), [
    ("mlp.gate.", "router"), ("up_proj", "experts.up"), ("down_proj", "experts.down"), ("gate_proj", "experts.gate")])
def test_a_family_that_no_layer_with_experts_has(check, part: str, role: str) -> None:
    found = check(_without(tiny.expert_tensors(), part), {**tiny.EXPERT_CONFIG, "hidden_act": "silu"})
    assert ("error", "weights-missing", role) in told(found)


def test_a_block_need_not_have_a_gate(check) -> None:
    """Only activations that come with one say so."""
    tensors = _without(tiny.dense_tensors(), "gate_proj")
    assert told(check(tensors, {**tiny.CONFIG, "hidden_act": "relu2"})) == set()


@pytest.mark.parametrize(("old", "new", "severity", "role"), [
    ("model.norm", "model.nrm", "error", "model.norm.weight"), ("q_proj", "qq_proj", "error", "attention.q"),
    ("q_proj", "seeker", "warning", "attention.q"), ("model.norm", "model.calm", "warning", "model.norm.weight"),
    ("post_attention_layernorm", "calm", "warning", "norm"), ("input_layernorm", "calm", "error", "norm")])
def test_a_family_of_another_name(check, old: str, new: str, severity: str, role: str) -> None:
    """A slip of the pen is an error; a word that is like none that is known may be a new spelling."""
    found = check(_without(tiny.dense_tensors(), old, new))
    (finding,) = (each for each in found.findings if each.rule == "weights-missing")
    assert (finding.severity, finding.subject) == (severity, role)
    assert new in finding.message and new in finding.facts["unrecognised"][0]


def test_layers_without_a_projection_beside_others_that_have_it(check) -> None:
    """Some models use one layer's keys and values in several."""
    tensors = {name: what for name, what in tiny.dense_tensors().items()
               if not (name.split(".")[2:3] in (["6"], ["7"], ["8"], ["9"]) and "v_proj" in name)}
    assert told(check(tensors)) == set()


def test_a_missing_file(check, tmp_path: Path) -> None:
    check(tiny.dense_tensors())
    (tmp_path / "release" / "model-00002-of-00002.safetensors").unlink()
    found = preflight(read(tmp_path / "release", cache=tmp_path / "cache"), SMALL)
    assert told(found) == {("error", "file-missing", "model-00002-of-00002.safetensors")}


def test_a_file_cut_short(check, tmp_path: Path) -> None:
    check(tiny.dense_tensors())
    file = tmp_path / "release" / "model-00002-of-00002.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as handle:
        handle.truncate(size - 10)
    found = preflight(read(tmp_path / "release", cache=tmp_path / "cache"), SMALL)
    assert told(found) == {("error", "file-truncated", file.name)}
    assert found.findings[0].facts == {"expected_bytes": size, "actual_bytes": size - 10}


@pytest.mark.parametrize(("size", "least"), [(0, 8), (60, None)])
def test_a_file_that_ends_within_its_header(check, tmp_path: Path, size: int, least: int | None) -> None:
    check(tiny.dense_tensors())
    file = tmp_path / "release" / "model-00002-of-00002.safetensors"
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    with file.open("r+b") as handle:
        handle.truncate(size)
    release = read(tmp_path / "release", cache=tmp_path / "cache")
    assert release.cut_shards == {file.name: least or header} and not release.has_weights
    [found] = preflight(release, SMALL).findings
    assert (found.rule, found.subject) == ("file-truncated", file.name)
    assert found.facts == {"expected_bytes": least or header, "actual_bytes": size}


def test_a_tensor_that_the_index_does_not_list(check) -> None:
    found = check(tiny.dense_tensors(), unlisted=["model.layers.3.self_attn.v_proj.weight"])
    assert told(found) == {("error", "file-unlisted", "model.layers.3.self_attn.v_proj.weight")}


def test_a_name_that_would_forge_lines(check, tmp_path: Path) -> None:
    name = "model.x\nPASS\x1b[2J.weight"
    found = check(tiny.dense_tensors() | {name: ((1,), "BF16")}, unlisted=[name])
    [unlisted] = [finding for finding in found.findings if finding.rule == "file-unlisted"]
    assert unlisted.subject == r"model.x\nPASS\x1b[2J.weight"
    assert unlisted.subject in unlisted.message and unlisted.message.isprintable()


def test_a_tensor_that_its_shard_does_not_hold(check, tmp_path: Path) -> None:
    check(tiny.dense_tensors())
    path = tmp_path / "release" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.layers.3.extra.weight"] = "model-00001-of-00002.safetensors"
    path.write_text(json.dumps(index))
    partial = msgspec.structs.replace(SMALL, partial=True)
    found = preflight(read(tmp_path / "release", cache=tmp_path / "cache"), partial)
    assert told(found) == {("error", "weights-missing", "model.layers.3.extra.weight")}


def test_another_content_than_published(check, tmp_path: Path) -> None:
    check(tiny.dense_tensors())
    release = read(tmp_path / "release", cache=tmp_path / "cache")
    weights = next(file for file in release.files if file.role == "weights")
    for stated, expected in ((weights.sha256, set()), ("0" * 64, {("error", "file-hash", weights.name)})):
        files = tuple(msgspec.structs.replace(file, expected_sha256=stated) if file == weights else file
                      for file in release.files)
        assert told(preflight(msgspec.structs.replace(release, files=files), SMALL)) == expected


@pytest.mark.parametrize("name", [
    "model.layers.7.self_attn.q_proj.weight", "model.layers.0.input_layernorm.weight",
    "model.layers.11.mlp.experts.3.down_proj.weight_scale_inv", "model.layers.11.mlp.experts.0.down_proj.weight"])
def test_a_lost_tensor(check, name: str) -> None:
    found = check(dropped(tiny.expert_tensors(), name), tiny.EXPERT_CONFIG)
    assert told(found) == {("error", "weights-missing", name)}


@pytest.mark.parametrize(("lost", "told_of"), [
    (("mlp.experts.2.up_proj.weight_scale_inv",), 1), (("self_attn.o_proj.weight",), 1),
    (("input_layernorm.weight",), 0), ((), 0), (("self_attn.q_proj.weight", "self_attn.o_proj.weight"), 0)])
@pytest.mark.parametrize(("speculative", "severity"), [("mtp", "error"), ("none", "warning")])
def test_a_matrix_lost_in_a_prediction_layer(check, lost: tuple[str, ...], told_of: int, speculative: str,
                                             severity: str) -> None:
    config = {**tiny.EXPERT_CONFIG, "num_nextn_predict_layers": 1}
    after = {name.replace(".11.", ".12."): what for name, what in tiny.expert_tensors().items() if ".11." in name}
    tensors = tiny.expert_tensors() | after | {"model.layers.12.eh_proj.weight": ((64, 128), "BF16")}
    facts = msgspec.structs.replace(SMALL.engine.facts, speculative=speculative)
    on = msgspec.structs.replace(SMALL, engine=msgspec.structs.replace(SMALL.engine, facts=facts))
    names = [f"model.layers.12.{name}" for name in lost]
    found = check(dropped(tensors, *names), config, on)
    assert told(found) == {(severity, "weights-missing", name) for name in names[:told_of]}


def test_scales_of_another_shape_are_one_finding(check) -> None:
    name = "model.layers.7.mlp.experts.1.down_proj.weight_scale_inv"
    found = check(tiny.expert_tensors() | {name: ((2, 1), "F32")}, tiny.EXPERT_CONFIG)
    assert told(found) == {("error", "scale-shape", name)}


def test_lost_ends_and_a_lost_layer(check) -> None:
    found = check(dropped(tiny.dense_tensors(), "model.embed_tokens.weight"))
    assert ("error", "weights-missing", "model.embed_tokens.weight") in told(found)
    untied = {**tiny.CONFIG, "tie_word_embeddings": False}
    assert told(check(tiny.dense_tensors(), untied)) == {("error", "weights-missing", "lm_head.weight")}
    layer = [name for name in tiny.dense_tensors() if ".layers.5." in name]
    assert told(check(dropped(tiny.dense_tensors(), *layer))) == {("error", "weights-missing", "layers.5")}


def test_a_sample_of_the_tensors_misses_nothing(check) -> None:
    sample = dict(list(tiny.expert_tensors().items())[:20])
    assert told(check(sample, tiny.EXPERT_CONFIG, msgspec.structs.replace(SMALL, partial=True))) == set()


def test_what_only_some_layers_have_is_not_missing_elsewhere(check) -> None:
    tensors = tiny.dense_tensors()
    tensors |= {f"model.layers.{layer}.self_attn.indexer.wk.weight": ((16, 64), "BF16") for layer in (0, 4, 8)}
    assert told(check(tensors)) == set()


def test_a_matrix_stored_plainly_needs_no_scale(check) -> None:
    name = "model.layers.2.mlp.experts.1.up_proj.weight"
    tensors = dropped(tiny.expert_tensors(), f"{name}_scale_inv")
    found = check({**tensors, name: (tensors[name][0], "BF16")}, tiny.EXPERT_CONFIG)
    assert told(found) == {("error", "quant-config-vs-file", name)}


def test_a_transposed_matrix(check) -> None:
    name = "model.layers.4.self_attn.k_proj.weight"
    found = check({**tiny.dense_tensors(), name: ((64, 48), "BF16")})
    assert told(found) == {("error", "weights-shape", name)}
    assert found.findings[0].facts == {"file": [64, 48], "declared": [48, 64]}


@pytest.mark.parametrize(("wrong", "subject"), [
    ({"intermediate_size": 80}, "model.layers.{L}.mlp.down_proj.weight"),
    ({"head_dim": 8}, "model.layers.{L}.self_attn.k_proj.weight"),
    ({"num_key_value_heads": 9}, "model.layers.{L}.self_attn.k_proj.weight"),
    ({"vocab_size": 100}, "model.embed_tokens.weight"), ({"hidden_size": 32}, "model.layers.{L}.mlp.up_proj.weight")])
def test_shapes_against_the_config(check, wrong: dict[str, object], subject: str) -> None:
    found = check(tiny.dense_tensors(), {**tiny.CONFIG, **wrong})
    assert ("error", "weights-shape", subject) in told(found)
    assert {rule for _, rule, _ in told(found)} == {"weights-shape"}


def test_shapes_against_the_engine(check) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    declared = [Declared(name=name, shape=[32, 64], dtype="BF16")]
    engine = msgspec.structs.replace(SMALL.engine, facts=msgspec.structs.replace(SMALL.engine.facts, declares=declared))
    found = check(tiny.dense_tensors(), on=msgspec.structs.replace(SMALL, engine=engine))
    assert told(found) == {("error", "weights-shape", name)}
    assert found.findings[0].facts == {"file": [48, 64], "declared": [32, 64]}


def test_engine_facts_that_nothing_checks_are_told(check, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are checked by now; one that is added and not checked yet is told."""
    every = {field.name for field in msgspec.structs.fields(EngineRequest)}
    assert every == {*engine_rules.CHECKED}
    monkeypatch.setattr(engine_rules, "CHECKED", tuple(every - {"unified_pages"}))
    stated = msgspec.structs.replace(SMALL.engine, facts=msgspec.structs.replace(
        SMALL.engine.facts, unified_pages=True, kv_replication=True))
    found = check(tiny.dense_tensors(), on=msgspec.structs.replace(SMALL, engine=stated))
    assert told(found) == {("info", "engine-facts-unread", "engine")}
    assert found.findings[0].facts == {"unread": ["unified_pages"]}


def test_layout_rules(check) -> None:
    two = msgspec.structs.replace(target(2), layouts=(Layout(tp=2),))
    found = check(tiny.dense_tensors(), on=two)
    assert told(found) == {("error", "shard-heads", "num_attention_heads"),
                           ("error", "shard-kv-heads", "num_key_value_heads")}
    assert all(finding.message.startswith("tp=2: ") for finding in found.findings)
    assert check(tiny.dense_tensors(), on=msgspec.structs.replace(two, layouts=(Layout(pp=2),))).verdict == "pass"


def test_without_a_layout_what_tp_would_break_is_only_told(check) -> None:
    found = check(tiny.dense_tensors(), on=target(2))
    assert told(found) == {("info", "shard-heads", "num_attention_heads"),
                           ("info", "shard-kv-heads", "num_key_value_heads")}
    assert found.verdict == "pass"
    assert check(tiny.dense_tensors(), on=target(3)).facts["valid_tp"] == [1, 3]


def test_more_stages_than_layers(check) -> None:
    wanted = msgspec.structs.replace(target(13), layouts=(Layout(pp=13), Layout(dp=13)))
    found = check(tiny.dense_tensors(), on=wanted)
    assert told(found) == {("error", "pipeline-stages", "num_hidden_layers")}
    assert found.findings[0].facts["layout"] == "pp=13"
    assert found.facts["layout"] == "dp=13"


def test_no_legal_layout_at_all_is_an_error(check) -> None:
    # a width of 96 in blocks of 64: the second block is a part of one, with tp = 1 as with any other
    config = {**tiny.EXPERT_CONFIG, "moe_intermediate_size": 96}
    config["quantization_config"] = {**config["quantization_config"], "weight_block_size": [64, 64]}
    tensors = {name: ((-(-96 // 64), 1) if "gate_proj" in name or "up_proj" in name else (1, -(-96 // 64)), dtype)
               if name.endswith("_scale_inv") else (shape, dtype)
               for name, (shape, dtype) in tiny.expert_tensors().items()}
    found = check(tensors, config, on=target(2))
    assert ("error", "shard-quant-block", "moe_intermediate_size") in told(found)
    assert found.verdict == "fail" and "layout" not in found.facts
    assert not any(rule == "shard-heads" for _, rule, _ in told(found))  # tp = 1 is closer than tp = 2


def test_the_search_looks_at_every_ep(check) -> None:
    # 4 experts on 8 devices: of the ep that divide 8, 2 and 4 deal them out evenly, tp = 1 is the only tp
    engine = msgspec.structs.replace(SMALL.engine, redundant_experts=False)
    found = check(tiny.expert_tensors(), tiny.EXPERT_CONFIG,
                  on=msgspec.structs.replace(target(8, concurrency=8), engine=engine))
    assert "ep=4" in found.facts["layout"]


def test_cache_for_a_token_of_a_long_sequence_leaves_out_full_windows(check) -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"] * 4
    found = check(tiny.dense_tensors(), {**tiny.CONFIG, "layer_types": kinds, "sliding_window": 8})
    assert found.facts["attention_layers"] == {"sliding": 8, "full": 4}
    assert found.facts["kv_bytes_per_token"] == 4 * 2 * 3 * 16 * 2


def test_memory(check) -> None:
    weights = check(tiny.dense_tensors()).facts["checkpoint_bytes"]

    def on(memory: float, devices: int = 1, layouts: tuple[Layout, ...] = ()) -> Findings:
        wanted = target(devices, on=device(memory_bytes=int(memory)), concurrency=1, layouts=layouts)
        return check(tiny.dense_tensors(), on=wanted)

    assert told(on(weights)) == {("error", "memory-weights", "one device")}
    assert told(on(weights * 1.2)) == {("error", "memory-total", "one device")}
    assert told(on(weights * 100)) == set()
    facts = on(weights * 1.2).findings[0].facts
    assert facts["usable_bytes"] == int(int(weights * 1.2) * 0.9)
    assert facts["need_bytes"] == sum(facts[cause] for cause in CAUSES)
    # three devices hold a little more than a third each
    assert on(weights * 0.2, 3).findings[0].rule == "memory-weights"
    assert on(weights * 100, 3, (Layout(pp=3),)).verdict == "pass"


def test_layer_lists(check) -> None:
    for count, expected in ((12, set()), (14, {("error", "config-list-length", "layer_types")})):
        found = check(tiny.dense_tensors(), {**tiny.CONFIG, "layer_types": ["full_attention"] * count})
        assert {entry for entry in told(found) if entry[1] == "config-list-length"} == expected


def test_errors_come_first_and_tables_show_everything(tmp_path: Path) -> None:
    from rich.console import Console

    two = msgspec.structs.replace(target(16), layouts=(Layout(tp=16),))
    folder = tiny.write(tmp_path / "release", tiny.dense_tensors())
    read_release = read(folder, cache=tmp_path / "cache")
    found = preflight(read_release, two)
    severities = [finding.severity for finding in found.findings]
    assert severities == sorted(severities, key=("error", "warning", "info").index)
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(overview(found, read_release, two), rules_table())
    text = console.export_text()
    console.file.close()
    assert all(finding.subject in text for finding in found.findings)
    assert all(rule.name in text for rule in rules())


def test_every_rule_has_a_page() -> None:
    pages = rule_pages()
    for rule in rules():
        page = pages[f"{rule.name}.md"]
        assert all(section in page for section in ("## What", "## Why", "## Example", "## How to fix")), rule.name
        assert rule.what in page
        assert f"[{rule.name}]({rule.name}.md)" in pages["README.md"]


def test_no_torch() -> None:
    import subprocess

    code = "import sys, dayzero.stages.preflight, dayzero.resolve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
