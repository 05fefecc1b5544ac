"""The HTML file: complete, self-contained, and safe with whatever a release calls things."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import re

import msgspec
import pytest
from tests.support.pages import Page
from tests.support.plan_models import dense, device, sparse
from tests.support.plan_models import target as target_of
from tests.support.results import adapted, planned, small_verdict, too_large

from dayzero.schema import Bundle, Finding, Findings, Limits, Waived, to_json
from dayzero.stages.plan import plan as plan_of
from dayzero.stages.report import report
from dayzero.stages.report.html import _script_json

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u2028"


@pytest.fixture(scope="module")
def complete() -> Page:
    return Page(report(adapted()))


def test_sections_and_charts_of_a_complete_run(complete: Page) -> None:
    sections = [attributes["id"] for attributes in complete.of("section")]
    assert sections == ["stages", "release", "findings", "plan", "run", "check", "operators", "commands"]
    plots = {attributes["id"] for attributes in complete.of("div") if attributes.get("class") == "plot"}
    assert plots == {f"chart-{name}" for name in (
        "pareto", "pareto-ttft", "memory", "stages", "decode", "prefill", "layers")}
    for words in ("weights dequantised from GGUF Q4_1 to bf16", "pad_strategy", "9 attention heads do not divide by 2",
                  "within 15%: yes", "The capital of France is Paris.", "measured, n=5, spread 3 %",
                  "3 x the error of the same model in bf16", "On a CPU it takes the engine's CPU build."):
        assert words in complete.words, words


def test_charts_hold_the_figures(complete: Page) -> None:
    figures = {name: json.loads(text) for name, text in complete.scripts.items() if name.startswith("chart-")}
    bars = {trace["name"]: trace["x"] for trace in figures["chart-stages-data"]["data"]}
    assert bars["weights"] == pytest.approx([(56_623_104 + layers * 7_080_192) / 2**30 for layers in (14, 16)])
    colours = [{trace["name"]: trace["marker"]["color"] for trace in figures[f"chart-{name}-data"]["data"]}
               for name in ("memory", "stages")]
    assert colours[0] == colours[1], "a cause has one colour"
    tolerance = figures["chart-layers-data"]["data"][-1]
    assert set(tolerance["y"]) == {0.02}
    assert figures["chart-layers-data"]["data"][0]["y"][0] is None, "an error of 0 has no place on a logarithmic axis"


def test_accessible(complete: Page) -> None:
    assert complete.of("html")[0]["lang"] == "en"
    assert all(attributes.get("aria-label") for attributes in complete.of("div") if attributes.get("role") == "img")
    assert all(attributes.get("scope") for attributes in complete.of("th"))
    assert len(complete.of("caption")) == len(complete.of("table"))
    assert len(complete.of("h1")) == 1


@pytest.mark.parametrize("make", [adapted, planned, too_large])
def test_nothing_is_loaded(make) -> None:
    text = report(make())
    page = Page(text)
    for _, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data"):
            assert not re.match(r"(?i)\s*(https?:)?//", attributes.get(name) or "")
    assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", text.partition("</style>")[0])
    policy = next(attributes["content"] for attributes in page.of("meta") if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'")


def test_only_its_own_scripts_may_run(complete: Page) -> None:
    policy = next(attributes["content"] for attributes in complete.of("meta") if "http-equiv" in attributes)
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    own = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
           for name, text in complete.scripts.items() if name.startswith("script ")}
    assert allowed == own and len(own) == 3
    assert not any(name.startswith("on") for _, attributes in complete.elements for name in attributes)


def _poisoned() -> object:
    """Results in which every string that a release can choose is hostile."""
    results = adapted()
    raw = json.loads(to_json(results))

    def poison(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            return {name: poison(part, name) for name, part in value.items()}
        if isinstance(value, list):
            return [poison(part, key) for part in value]
        free = ("name", "origin", "provenance", "unknowns", "role", "pattern", "message", "hint", "subject", "rule",
                "module", "op", "kind", "module_type", "dtype", "text", "prompt", "prompts", "explanation", "limits",
                "detail", "reference", "source", "place", "reason", "notes", "finish_", "scheme", "file", "assumed")
        return EVIL + value if isinstance(value, str) and key in free else value

    for noun in ("findings", "graph", "plan", "record", "verdict", "release"):
        kept = raw["release"]["tensors"]
        raw[noun] = poison(raw[noun])
        raw["release"]["tensors"] = kept
    raw["release"]["model"]["attentions"] = json.loads(to_json(results.release.model.attentions))
    raw["graph"]["phases"] = json.loads(to_json(results.graph.phases))
    for call, original in zip(raw["graph"]["operators"], results.graph.operators, strict=True):
        call["phase"] = original.phase
    poisoned = msgspec.convert(raw, type(results), dec_hook=_columns)
    bundle = Bundle(files={EVIL: ""}, commands={EVIL: EVIL}, notes=(EVIL,))
    return msgspec.structs.replace(poisoned, bundle=bundle, environment={EVIL: EVIL})


def _columns(type_: type, value: object) -> object:
    return type_.unpack(value) if hasattr(type_, "unpack") else value


def test_hostile_strings_stay_text() -> None:
    clean, page = Page(report(adapted())), Page(report(_poisoned()))
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in clean.elements}
    assert len(page.of("script")) == len(clean.of("script"))
    assert page.of("img") == []
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "<script>alert(1)</script>" in page.words, "shown as text"
    rows = json.loads(page.scripts["operator-data"])["single"]
    assert rows[0][2].startswith(EVIL)
    figure = json.loads(page.scripts["chart-layers-data"])
    assert "&lt;img" in figure["data"][0]["x"][0], "chart texts know a little HTML"


def test_json_in_the_page_cannot_end_its_element() -> None:
    assert json.loads(str(_script_json({"a": EVIL}))) == {"a": EVIL}
    assert not set("<>&\u2028") & set(str(_script_json([EVIL])))
    with pytest.raises(ValueError, match="Out of range"):
        _script_json(float("nan"))


def test_missing_stages_say_why() -> None:
    page = Page(report(planned()))
    words = " ".join(page.words.split())
    assert "“run” is not possible here, no weights. To make it possible: put the shards into the folder." in words
    assert "“trace” is not possible here, the release brings no code that can be traced." in words
    assert "Preflight has nothing to say against it." in words
    assert "chart-layers-data" not in page.scripts
    nothing = Page(report(msgspec.structs.replace(adapted(), stages=(), findings=None, graph=None, plan=None,
                                                  record=None, verdict=None, bundle=None)))
    assert nothing.words.count("has not been asked for") == 6


def test_findings_are_grouped_by_severity() -> None:
    found = tuple(Finding(rule=f"rule-{severity}", severity=severity, subject="s", message="m", hint="h")
                  for severity in ("error", "warning", "info"))
    page = Page(report(msgspec.structs.replace(adapted(), findings=Findings(findings=found, facts={}))))
    order = [page.words.index(word) for word in ("Errors", "rule-error", "Warnings", "rule-warning", "Good to know")]
    assert order == sorted(order)


def test_first_divergence_is_shown() -> None:
    page = Page(report(msgspec.structs.replace(adapted(), verdict=small_verdict(passed=False))))
    assert "First divergence: layers.17 (pp=2), relative error 0.7 after 0.0074 just before." in page.words


def test_the_same_results_give_the_same_page() -> None:
    assert report(adapted()) == report(adapted())


def _with_model(results, **changes):
    model = msgspec.structs.replace(results.release.model, **changes)
    return msgspec.structs.replace(results, release=msgspec.structs.replace(results.release, model=model))


def test_what_is_not_understood_stands_beside_the_findings() -> None:
    unknowns = ("text_config.a", "text_config.b")
    words = " ".join(Page(report(_with_model(planned(), unknowns=unknowns))).words.split())
    assert "nothing to say against it, but 2 config keys or tensors are not understood: text_config.a, text_" in words
    assert Page(report(_with_model(adapted(), unknowns=unknowns))).words.count("are not understood: text_config.a") == 1
    assert "What they change is in no finding" not in Page(report(_with_model(planned(), unknowns=()))).words


def test_all_weight_families_are_there() -> None:
    family = planned().release.model.families[0]
    families = tuple(msgspec.structs.replace(family, role=f"role.{index}", stored_bytes=2**30, count=1)
                     for index in range(14))
    page = Page(report(_with_model(planned(), families=families)))
    assert "and 4 more, together 4.00 GiB" in page.words
    assert all(f"role.{index}split by vocab" in page.words for index in range(14))
    assert "more-families" not in {attributes.get("id") for attributes in Page(report(planned())).of("details")}


def test_the_front_and_the_layouts_at_the_load_that_was_asked_for() -> None:
    page = Page(report(planned()))
    line, points = json.loads(page.scripts["chart-pareto-data"])["data"]
    assert line["x"] == pytest.approx([9.2, 9.4, 9.8, 10.6, 12.2, 15.4, 21.8, 28.2])  # ms
    assert line["y"][0] == pytest.approx(1 / 0.0092 / 16)
    assert len(set(line["marker"]["color"])) == 2, "what breaks a limit has another colour"
    assert points["x"] == pytest.approx([21.0, 27.3]) and points["y"][0] == pytest.approx(64 / 0.021 / 16)
    assert points["text"] == ["tp=8 pp=2", ""]
    assert json.loads(page.scripts["chart-pareto-ttft-data"])["data"][0]["x"][0] == pytest.approx(520.0)


def test_a_limit_is_drawn() -> None:
    results = planned()
    target = msgspec.structs.replace(results.target, limits=Limits(tpot_s=0.015))
    page = Page(report(msgspec.structs.replace(results, target=target)))
    shapes = [json.loads(page.scripts[f"chart-{name}-data"])["layout"].get("shapes", []) for name in (
        "pareto", "pareto-ttft")]
    assert [len(one) for one in shapes] == [1, 0] and shapes[0][0]["x0"] == pytest.approx(15.0)


def test_what_other_rates_would_change() -> None:
    page = Page(report(planned()))
    slower, faster = json.loads(page.scripts["chart-sensitivity-data"])["data"]
    assert (slower["name"], faster["name"]) == ("-20%", "+20%")
    assert slower["x"] == pytest.approx([-12.5] * 3) and faster["x"] == pytest.approx([100 * (21 / 19 - 1)] * 3)
    assert "tp=8 ep=16 dp=2, 3% ahead" in page.words and "96 heads are not whole on 16 ranks" in page.words


def test_workers_apart_and_other_precisions_have_tables() -> None:
    target = target_of(8, precisions=("bf16", "fp8"), concurrency=32)
    plan = plan_of(sparse(), target)
    assert plan.apart and len(plan.variants) == 2
    page = Page(report(msgspec.structs.replace(planned(), target=target, plan=plan)))
    assert "Workers that only prefill, and workers that only decode" in page.words
    assert "bf16, as released" in page.words and f"{plan.apart[0].prefill_workers} × " in page.words
    for sentence in plan.summary:
        assert sentence in page.words


def test_layouts_that_do_not_work_are_told_by_reason() -> None:
    target = target_of(4, on=device(memory_bytes=150_000_000))
    plan = plan_of(dense(), target)
    page = Page(report(msgspec.structs.replace(planned(), target=target, plan=plan)))
    assert {family.rule for family in plan.families} >= {"shard-heads", "memory-total"}
    for family in plan.families:
        assert family.message in page.words and family.text in page.words


def test_training_has_charts_of_its_own() -> None:
    target = target_of(8, kind="train", global_batch=64)
    plan = plan_of(dense(), target)
    results = msgspec.structs.replace(planned(), target=target, plan=plan)
    page = Page(report(results))
    plots = {attributes["id"] for attributes in page.of("div") if attributes.get("class") == "plot"}
    assert {"chart-memory", "chart-step"} <= plots and "chart-pareto" not in plots
    step = json.loads(page.scripts["chart-step-data"])["data"]
    assert sum(trace["x"][0] for trace in step) == pytest.approx(plan.training[0].step_s.value)


def test_first_notes_of_the_commands_stand_out() -> None:
    bundle = Bundle(files={}, commands={}, notes=("No command: why.", "a detail"), foremost=("No command: why.",))
    page = Page(report(msgspec.structs.replace(planned(), bundle=bundle)))
    assert page.words.count("No command: why.") == 1 and page.words.count("a detail") == 1


def test_operators_say_whose_they_are(complete: Page) -> None:
    assert "operators of that code as it stands, unquantised and unfused" in complete.words


def test_what_is_waived_is_in_the_report() -> None:
    waived = Waived(rule="shard-heads", severity="error", subject=EVIL, message="9 heads on 2 ranks", hint="",
                    reason=EVIL, expires=datetime.date(2026, 12, 31))
    found = Findings(findings=(), facts={}, waived=(waived,))
    page = Page(report(msgspec.structs.replace(adapted(), findings=found)))
    assert "Waived by the target" in page.words and f"accepted until 2026-12-31: {EVIL}" in page.words
    assert "nothing to say against it" not in page.words
