"""SARIF 2.1.0: the structure that its schema asks for, and what code hosts ask for beyond it."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import msgspec
import pytest
from tests.support import tiny_release as tiny
from tests.support.plan_models import target

from dayzero.schema import Findings, Layout, Release, Target, to_json
from dayzero.schema.target import Waiver
from dayzero.stages.preflight import preflight, rules, sarif
from dayzero.stages.read import read
from dayzero.stages.read.card import read_card

TODAY = datetime.date(2026, 7, 1)


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Findings, Release, Target, Path]:
    tensors = tiny.dense_tensors()
    del tensors["model.layers.3.self_attn.o_proj.weight"]
    folder = tiny.write(tmp_path / "a release", tensors)
    (folder / "config.json").write_text(json.dumps(tiny.CONFIG, indent=2))
    file = tmp_path / "two.toml"
    file.write_text('[cluster]\ndevice = "h200"\n\n[layout]\ntp = 2\n')
    on = msgspec.structs.replace(
        target(2, concurrency=1, input_tokens=16, output_tokens=16, max_batched_tokens=16), layouts=(Layout(tp=2),),
        waivers=(Waiver(rule="shard-heads", reason="padded", expires=TODAY),))
    release = read(folder, cache=tmp_path / "cache")
    return preflight(release, on, today=TODAY), release, on, file


def _checked(log: Any) -> dict[str, Any]:
    """The one run of a log, after its JSON was held against the parts of the schema that it uses."""
    log = json.loads(to_json(log))
    assert log["version"] == "2.1.0" and set(log) == {"$schema", "version", "runs"}
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "dayzero" and driver["version"]
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"] and rule["help"]["text"] and "## Why" in rule["help"]["markdown"]
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note") and result["message"]["text"]
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        uri = physical["artifactLocation"]["uri"]
        assert re.fullmatch(r"[\w\-./%:@]+", uri) and not uri.startswith("/")
        assert physical["artifactLocation"].get("uriBaseId") in (None, *run["originalUriBaseIds"])
        assert isinstance(physical["region"]["startLine"], int) and physical["region"]["startLine"] >= 1
        assert re.fullmatch(r"[0-9a-f]{16}:\d+", result["partialFingerprints"]["primaryLocationLineHash"])
        assert all(each["kind"] in ("inSource", "external") for each in result.get("suppressions", ()))
    prints = [result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]]
    assert len(set(prints)) == len(prints)
    for base in run["originalUriBaseIds"].values():
        assert "uri" not in base or (urlparse(base["uri"]).scheme and base["uri"].endswith("/"))
    return run


def test_results(parts: tuple[Findings, Release, Target, Path], tmp_path: Path) -> None:
    found, release, on, file = parts
    run = _checked(sarif(found, release, on, file, base=tmp_path))
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [rule.name for rule in rules()]
    told = {result["ruleId"]: result for result in run["results"]}
    assert len(run["results"]) == len(found.findings) + len(found.waived)
    where = {rule: result["locations"][0]["physicalLocation"] for rule, result in told.items()}
    assert where["weights-missing"]["artifactLocation"] == {"uri": "a%20release/model.safetensors.index.json"}
    assert where["shard-kv-heads"] == {"artifactLocation": {"uri": "two.toml"}, "region": {"startLine": 4}}
    assert told["weights-missing"]["locations"][0]["logicalLocations"] == [
        {"fullyQualifiedName": "model.layers.3.self_attn.o_proj.weight"}]
    assert run["properties"]["verdict"] == "fail" and run["properties"]["facts"]["layers"] == 12


def test_what_is_waived_is_suppressed(parts: tuple[Findings, Release, Target, Path], tmp_path: Path) -> None:
    results = _checked(sarif(*parts, base=tmp_path))["results"]
    suppressed = [result for result in results if "suppressions" in result]
    assert [(result["ruleId"], result["level"]) for result in suppressed] == [("shard-heads", "error")]
    assert suppressed[0]["suppressions"] == [
        {"kind": "external", "status": "accepted", "justification": "padded (until 2026-07-01)"}]


def test_fingerprints_stay_when_lines_and_numbers_change(parts: tuple[Findings, Release, Target, Path],
                                                         tmp_path: Path) -> None:
    found, release, on, file = parts
    before = sarif(found, release, on, file, base=tmp_path)["runs"][0]["results"]
    file.write_text("\n\n" + file.read_text())
    changed = msgspec.structs.replace(found, findings=tuple(
        msgspec.structs.replace(each, message=f"{each.message} 7") for each in found.findings))
    after = sarif(changed, release, on, file, base=tmp_path)["runs"][0]["results"]
    assert before != after
    assert [each["partialFingerprints"] for each in before] == [each["partialFingerprints"] for each in after]
    twice = msgspec.structs.replace(found, findings=found.findings + found.findings)
    _checked(sarif(twice, release, on, file, base=tmp_path))


def test_a_release_elsewhere_is_named_from_its_folder(parts: tuple[Findings, Release, Target, Path],
                                                      tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    run = _checked(sarif(*parts, base=tmp_path / "work"))
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in run["results"]]
    assert {"uri": "model.safetensors.index.json", "uriBaseId": "RELEASE"} in places
    assert run["originalUriBaseIds"]["RELEASE"]["uri"] == f"{(tmp_path / 'a release').as_uri()}/"


def test_a_card_is_one_file(root: Path, tmp_path: Path) -> None:
    card = read_card(root / "examples/cards/smollm2-135m.toml")
    on = msgspec.structs.replace(target(2), layouts=())
    run = _checked(sarif(preflight(card, on), card, on, tmp_path / "absent.toml", base=root))
    uris = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in run["results"]}
    assert uris == {"examples/cards/smollm2-135m.toml"}
