"""The terminal summary: short, complete, and safe to print."""

from __future__ import annotations

import datetime
import io

import msgspec
import pytest
from rich.console import Console
from tests.support.results import adapted, large_release, planned, small_verdict, too_large

from dayzero.schema import Bundle, Finding, Findings, Waived
from dayzero.stages.report import release_card, summary


def _printed(renderable: object, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize("make", [adapted, planned, too_large])
def test_it_is_a_screenful(make) -> None:
    assert len(_printed(summary(make())).splitlines()) <= 32


def test_everything_of_a_complete_run() -> None:
    text = _printed(summary(adapted()), width=220)
    for expected in ("ADAPTED", "134.52 M parameters", "dequantised from GGUF Q4_1", "0 errors, 1 warning, 2 infos",
                     "shard-heads num_attention_heads", "643.04 MiB of 7.20 GiB", "peak memory", "within 15%: yes",
                     "decode rate", "factor 1.5: yes", "vllm serve demo/SmolLM2-135M", "6 of 6 checks"):
        assert expected in text, expected


def test_what_was_not_possible_is_said() -> None:
    text = _printed(summary(planned()), width=200)
    assert "NOT PROVEN" in text
    assert "not possible here: no weights  -> put the shards into the folder" in text
    assert "FAIL" in _printed(summary(too_large()))
    assert "FAIL" in _printed(summary(msgspec.structs.replace(adapted(), verdict=small_verdict(passed=False))))


def test_findings_that_are_not_shown_are_counted() -> None:
    found = tuple(Finding(rule=f"rule-{number}", severity="warning", subject="s", message="m", hint="")
                  for number in range(6))
    text = _printed(summary(msgspec.structs.replace(adapted(), findings=Findings(findings=found, facts={}))))
    assert "rule-3" in text and "rule-4" not in text and "and 2 more, in the report" in text


def test_a_prediction_out_of_tolerance_is_shown() -> None:
    results = adapted()
    slow = msgspec.structs.replace(results.record.runs[0], tokens_per_s=10.0)
    record = msgspec.structs.replace(results.record, runs=(slow, *results.record.runs[1:]))
    text = _printed(summary(msgspec.structs.replace(results, record=record)), width=220)
    assert "predicted 83.3 tokens/s (62.5 to 104), measured 10 tokens/s, ratio 0.12  factor 1.5: NO" in text


def test_names_are_neither_markup_nor_control_characters() -> None:
    finding = Finding(rule="r", severity="error", subject="[bold]x[/bold]", message="\x1b[31mred\x07", hint="")
    results = msgspec.structs.replace(
        adapted(), findings=Findings(findings=(finding,), facts={}),
        release=msgspec.structs.replace(adapted().release, name="[red]evil[/red]\x1b]0;title\x07"))
    text = _printed(summary(results), width=200)
    assert "[bold]x[/bold]" in text and "[red]evil[/red]" in text
    assert "\x1b" not in text and "\x07" not in text
    assert "\x1b" not in _printed(release_card(results.release))


def test_card_has_the_three_definitions_of_active() -> None:
    text = _printed(release_card(large_release()), width=200)
    for expected in ("2,779,931,644,160", "105.36 B with embedding and head", "104.19 B without input embedding",
                     "103.02 B without embedding and head", "69 linear, 24 latent attention", "1 dense, 92 experts",
                     "896 routed, 16 for each token, 2 shared"):
        assert expected in text, expected


def test_what_must_be_known_before_a_command_is_shown() -> None:
    results = planned()
    bundle = Bundle(files={}, commands={}, notes=("No launch command: why.", "a detail"),
                    foremost=("No launch command: why.",))
    text = _printed(summary(msgspec.structs.replace(results, bundle=bundle)), width=80)
    assert "command       No launch command: why." in text
    assert "a detail" not in text


def test_card_counts_multi_token_prediction_apart() -> None:
    # DeepSeek-V3: 671.03 B, and a layer for multi-token prediction of 13.46 B
    release = large_release()
    family = release.model.families[0]
    extra = (msgspec.structs.replace(family, role="mtp.experts.up", parameters=13_000_000_000),
             msgspec.structs.replace(family, role="mtp.norm", parameters=463_426_304))
    model = msgspec.structs.replace(release.model, parameters_text=684_489_845_504,
                                    families=(*release.model.families, *extra))
    text = _printed(release_card(msgspec.structs.replace(release, model=model)), width=200)
    assert "671.03 B + 13.46 B multi-token prediction" in text


def test_what_is_not_understood_is_counted_and_named() -> None:
    results = planned()
    model = msgspec.structs.replace(results.release.model, unknowns=("a", "b", "c", "d", "e"))
    text = _printed(summary(msgspec.structs.replace(
        results, release=msgspec.structs.replace(results.release, model=model))))
    assert "5 config keys or tensors are not understood: a, b, c and 2 more" in text


def test_what_is_waived_is_printed_with_its_reason() -> None:
    waived = Waived(rule="shard-heads", severity="error", subject="num_attention_heads", message="9 heads on 2 ranks",
                    hint="", reason="the engine pads", expires=datetime.date(2026, 12, 31))
    results = msgspec.structs.replace(adapted(), findings=Findings(findings=(), facts={}, waived=(waived,)))
    text = _printed(summary(results), width=200)
    assert "0 errors, 0 warnings, 0 infos, 1 waived" in text
    assert "waived  shard-heads num_attention_heads: 9 heads on 2 ranks  until 2026-12-31: the engine pads" in text


def test_what_is_not_proven_in_full_is_not_called_adapted() -> None:
    verdict = msgspec.structs.replace(adapted().verdict, not_made={"gradients": "no memory"})
    text = _printed(summary(msgspec.structs.replace(adapted(), verdict=verdict)), width=400)
    assert "RUNS, NOT PROVEN IN FULL" in text and "ADAPTED" not in text
    assert "is it proven  " in text and "not in full" in text
