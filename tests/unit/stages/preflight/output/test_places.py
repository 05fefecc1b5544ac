"""Lines of keys in JSON, and the file and line that each kind of finding is about."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import tiny_release as tiny
from tests.support.plan_models import target

from dayzero.schema import Finding, Layout
from dayzero.schema.target import Waiver
from dayzero.stages.preflight.output.places import JsonLines, Places
from dayzero.stages.read import read

CONFIG = """{
  "model_type": "tiny", "vision_config": {"num_attention_heads": 4,
    "patch": [14, 14]},
  "text_config": {
    "num_attention_heads": 9,
    "escaped \\" key": "brace } in a text",
    "rope_scaling": [{"type": "yarn"}, {"factor": 2}]
  },
  "quantization_config": {"ignore": ["lm_head",
    "re:.*gate"]}
}
"""
TARGET = """# a comment
[cluster]
device = "h200"

[engine]
speculative = "mtp"
filters = [{drop = "model.layers.61."}]
[[layout]]
tp = 2
[[layout]]
tp = 3

[[waivers]]
rule = "shard-heads"
[[waivers]]
rule = "rope-base"
"""


def test_lines_of_keys_and_texts() -> None:
    lines = JsonLines.of(CONFIG)
    assert lines.keys["model_type"] == 2 and lines.keys["vision_config.num_attention_heads"] == 2
    assert lines.keys["vision_config.patch"] == 3
    assert lines.keys["text_config.num_attention_heads"] == 5
    assert lines.keys["text_config.rope_scaling.factor"] == 7
    assert lines.keys["quantization_config.ignore"] == 9
    assert lines.texts["re:.*gate"] == 10 and lines.texts["brace } in a text"] == 6


_JSON = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_characters=".")), inner), max_leaves=20)


@given(st.dictionaries(st.text("abc", min_size=1), _JSON))
def test_every_key_of_any_json_is_on_its_line(value: dict[str, object]) -> None:
    text = json.dumps(value, indent=1)
    lines = JsonLines.of(text)
    for key in value:
        assert text.splitlines()[lines.keys[key] - 1].startswith(f' "{key}":')


@given(st.text('{}[]":\\,a\n'))
def test_what_is_no_json_does_no_harm(text: str) -> None:
    assert all(1 <= line <= text.count("\n") + 1 for line in JsonLines.of(text).keys.values())


@pytest.fixture
def places(tmp_path: Path) -> Places:
    config = {**tiny.CONFIG, "extra": ["an entry"]}
    folder = tiny.write(tmp_path / "release", tiny.dense_tensors(), config)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "modeling_tiny.py").write_text("import os\n")
    (tmp_path / "target.toml").write_text(TARGET)
    on = msgspec.structs.replace(target(6), layouts=(Layout(tp=2), Layout(tp=3)), waivers=tuple(
        Waiver(rule=rule, reason="r", expires="2026-12-31") for rule in ("shard-heads", "rope-base")))
    return Places(read(folder, cache=tmp_path / "cache"), on, tmp_path / "target.toml")


@pytest.mark.parametrize(("rule", "subject", "facts", "file", "line"), [
    ("config-unread", "num_attention_heads", {}, "config.json", "num_attention_heads"),
    ("mtp-absent", "vocab_size (layers.12)", {}, "config.json", "vocab_size"),
    ("quant-exclude-unmatched", "an entry", {}, "config.json", "an entry"),
    ("arch-unsupported", "tiny", {}, "config.json", '"model_type"'),
    ("shard-heads", "num_attention_heads", {"layout": "tp=3"}, "target.toml", 10),
    ("shard-heads", "num_attention_heads", {"layout": "tp=6"}, "config.json", "num_attention_heads"),
    ("memory-total", "tp=2", {"layout": "tp=2"}, "target.toml", 8),
    ("memory-total", "pp=6", {"layout": "pp=6"}, "target.toml", 2),
    ("engine-facts-unread", "engine", {}, "target.toml", 5),
    ("weights-filter-dead", "model.layers.61.", {}, "target.toml", 7),
    ("waiver-unused", "rope-base", {}, "target.toml", 15),
    ("weights-shape", "model.layers.0.self_attn.q_proj.weight", {}, "model-00001-of-00002.safetensors", 1),
    ("weights-shape", "model.layers.11.mlp.down_proj.weight", {}, "model-00002-of-00002.safetensors", 1),
    ("weights-shape", "model.layers.{L}.mlp.down_proj.weight", {}, "model-00001-of-00002.safetensors", 1),
    ("quant-fusion-mixed", "model.layers.11.mlp.up_proj + model.layers.11.mlp.gate_proj", {},
     "model-00002-of-00002.safetensors", 1),
    ("weights-missing", "model.layers.12.mlp.up_proj.weight", {}, "model.safetensors.index.json", 1),
    ("file-truncated", "model-00002-of-00002.safetensors", {}, "model-00002-of-00002.safetensors", 1),
    ("weights-missing", f"model.layers.{'9' * 5000}.mlp.up_proj.weight", {}, "model.safetensors.index.json", 1),
    ("code-untrusted", "modeling_tiny.py:7", {}, "modeling_tiny.py", 7),
    ("values-read", "values", {}, "config.json", 1),
])
def test_places(places: Places, rule: str, subject: str, facts: dict[str, object], file: str, line: int | str) -> None:
    place = places.of(Finding(rule=rule, severity="error", subject=subject, message="", hint="", facts=facts))
    assert (Path(place.file).name, place.of_target) == (file, file == "target.toml")
    if isinstance(line, str):
        text = (Path(str(places.release.root)) / file).read_text().splitlines()
        assert line in text[place.line - 1]
    else:
        assert place.line == line


def test_files_that_are_gone_cost_the_line_only(places: Places) -> None:
    places.target_file.unlink()
    (Path(str(places.release.root)) / "config.json").unlink()
    for rule, subject in (("memory-total", "tp=2"), ("config-unread", "num_attention_heads")):
        facts = {"layout": "tp=2"} if rule == "memory-total" else {}
        assert places.of(Finding(rule=rule, severity="error", subject=subject, message="", hint="", facts=facts)
                         ).line == 1


def test_many_findings_among_many_tensors_take_linear_time(tmp_path: Path) -> None:
    odd: tiny.Tensors = {f"model.layers.{number % 5}.{name}.weight": ((1,), "BF16")
                         for number in range(2000) for name in (f"odd{number}x", f"odd.{number}")}
    release = read(tiny.write(tmp_path / "r", tiny.dense_tensors() | odd), metadata_only=True)
    where = Places(release, target(1), tmp_path / "t.toml")
    started = time.process_time()
    for name in [*odd][:1000]:
        found = Finding(rule="x", severity="info", subject=name, message="m", hint="h")
        assert where.of(found).file.endswith(".safetensors")
    assert time.process_time() - started < 5  # a tenth of a second; minutes when each looks at all


@pytest.mark.parametrize("line", ["²", "9" * 5000, "-1", "x", ""])
def test_what_is_no_number_of_a_line(tmp_path: Path, line: str) -> None:
    release = read(tiny.write(tmp_path / "r", tiny.dense_tensors()), metadata_only=True)
    found = Finding(rule="x", severity="info", subject=f"config.json:{line}", message="m", hint="h")
    assert Places(release, target(1), tmp_path / "t.toml").of(found).line == 1
