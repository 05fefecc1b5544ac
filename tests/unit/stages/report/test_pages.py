"""Pages of a comparison and of a gate's runs: complete, self-contained, safe with any name."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.dumps import Step, Tensor, runs, write
from tests.support.pages import Page

from dayzero.schema.gate import Changed, GateCheck, GateResult, Identity
from dayzero.stages.check.compare import compare
from dayzero.stages.report import comparison_page, history_page

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def dump(folder: Path, wrong: float) -> Path:
    """Three layers of two modules; the second layer's feed-forward is off by a factor."""
    random = np.random.default_rng(1)
    tensors = []
    for layer in range(3):
        for module, kind in (("self_attn", "attention"), ("mlp", "feed_forward")):
            values = random.normal(size=(12, 8)).astype(np.float32)
            factor = 1 + wrong * (layer >= 1 and module == "mlp")
            tensors.append(Tensor(f"model.layers.{layer}.{module}", values * np.float32(factor), kind=kind))
    logits = random.uniform(size=(12, 40)).astype(np.float32)
    logits[4, 3], logits[4, 7] = 9.0, 15.0 if wrong else 6.0
    tensors.append(Tensor("lm_head", logits, what="logits", slot="logits", kind="head"))
    return write(folder, [Step(runs((0, 0, 12)), tensors)], release=EVIL)


@pytest.mark.parametrize("wrong", [0.0, 0.25])
def test_a_comparison(tmp_path: Path, wrong: float) -> None:
    found = compare(dump(tmp_path / "a", 0.0), dump(tmp_path / "b", wrong))
    page = Page(comparison_page(found))
    assert (" checks fail" in page.words) is (wrong > 0) and EVIL in page.words and not page.of("img")
    figures = {name: json.loads(text) for name, text in page.scripts.items() if name.startswith("chart-")}
    assert set(figures) == {"chart-by-layer-data", "chart-places-data", "chart-modules-data",
                            *(["chart-tokens-data"] if wrong else [])}
    layers = figures["chart-by-layer-data"]["data"]
    assert layers[0]["x"] == [0, 1, 2] and layers[0]["y"][1] == (pytest.approx(0.25, rel=1e-3) if wrong else None)
    if wrong:
        ties, beyond = figures["chart-tokens-data"]["data"]
        assert (ties["x"], beyond["x"]) == ([], [5]) and beyond["y"] == [pytest.approx(3.0)]
        assert beyond["text"] == ["sequence 0: 3 becomes 7"]
    heat = figures["chart-modules-data"]["data"][0]
    assert heat["y"] == ["self_attn", "mlp"] and heat["x"] == [0, 1, 2]
    assert (heat["z"][1][1] > 0) is (wrong > 0) and heat["z"][1][0] < 0
    if wrong:
        assert "first divergence: model.layers.1.mlp" in page.words and "Checks that fail" in page.words


def result(day: int, outcome: str, margin: float, **more: object) -> GateResult:
    checks = (GateCheck(name="bf16, tp=2", outcome=outcome, margin=margin, detail=EVIL),
              GateCheck(name="again", outcome="pass", detail="the same bits"))
    return GateResult(**{"release": EVIL, "outcome": outcome, "checks": checks, "baseline": "2026-01-01T00:00:00+00:00",
                         "changed": (), "identity": Identity(), "made": f"2026-01-{day:02}T03:00:00+00:00",
                         "stored": False, "seconds": 9.0} | more)


def test_the_runs_of_a_gate() -> None:
    changed = (Changed(what="libraries", name="torch", before="2.13.0", after="2.14.0"),)
    history = [result(1, "pass", 0.3, stored=True), result(2, "fail", 7.0, changed=changed)]
    page = Page(history_page(history))
    [figure] = [json.loads(text) for name, text in page.scripts.items() if name.startswith("chart-")]
    first, second = figure["data"]
    assert (first["y"], first["marker"]["symbol"]) == ([0.3, 7.0], ["circle", "x"])
    assert second["y"] == [None, None] and len(figure["layout"]["shapes"]) == 2
    assert "Does not run as it did" in page.words and "2.14.0" in page.words and not page.of("img")
    assert "Runs as it did" in Page(history_page([msgspec.structs.replace(history[0])])).words
