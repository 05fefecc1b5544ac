"""The plan in words, on a terminal, and as the JSON of the contract."""

import io
import json

import msgspec
from rich.console import Console
from tests.support.plan_models import dense, device, sparse, target

from dayzero.schema import Layout, Limits
from dayzero.stages.plan import explanation, overview, plan, to_contract
from dayzero.units import format_interval

DENSE = dense()


def shown(page):
    console = Console(file=io.StringIO(), width=160)
    console.print(page)
    return console.file.getvalue()


def test_the_terminal_shows_candidates_and_reasons():
    page = shown(overview(plan(DENSE, target(2))))
    assert "dp=2" in page and "pp=2" in page and "shard-heads" in page
    assert "9 heads cannot be shared by 2 ranks" in " ".join(page.split())
    assert "If rates were others" in page and "Throughput against" not in page


def test_the_first_sentences_compare_the_next_best():
    found = plan(sparse(), target(8), top=100)
    best, second = found.candidates[:2]
    assert found.summary[0] == f"{best.layout.text}: {best.explanation}"
    assert found.summary[1] == f"Next is {second.layout.text}: {second.comparison}."
    assert best.comparison == "" and best.within
    for one in found.candidates[1:]:
        share = one.tokens_per_s.value / best.tokens_per_s.value - 1
        if one.fits and share < -0.006:
            assert one.comparison.startswith(f"loses {-share:.0%}: ")


def test_the_terminal_says_when_nothing_fits():
    found = plan(DENSE, target(2, on=device(memory_bytes=10**6)))
    page = " ".join(shown(overview(found)).split())
    assert page.startswith("Nothing fits on this target. Nearest is pp=2. Does not fit: the fullest device needs")
    assert "It needs" in page and "more than the 878.91 KiB of a device" in page
    assert "No cluster that fits was found of up to" in page
    lacking = plan(DENSE, target(1, on=device(memory_bytes=400_000_000)))
    assert lacking.best is None and lacking.smallest[0].devices > 1
    assert f"The smallest cluster that fits has {lacking.smallest[0].nodes} x 1 devices" in lacking.summary[-1]


def test_the_terminal_says_when_nothing_is_legal():
    one = plan(DENSE, target(2, layouts=(Layout(tp=2),)))
    assert one.summary[0].startswith("tp=2 breaks a rule, shard-heads: ") and one.candidates == ()
    both = plan(DENSE, target(4, layouts=(Layout(tp=4), Layout(tp=2, dp=2))))
    assert both.summary[0].startswith("All 2 layouts break a rule, 1 of them shard-heads (tp=")
    assert "The smallest cluster that fits has 1 device: one device" in one.summary[1]


def test_limits_that_are_not_kept():
    limited = msgspec.structs.replace(target(4), limits=Limits(tpot_s=1e-6))
    found = plan(DENSE, limited)
    assert found.best and not found.best.within and "It breaks limits: TPOT" in found.best.explanation
    assert found.limits[0].met_by == 0 and found.limits[0].nearest == min(one.tpot_s.value for one in found.candidates)
    assert any(line.startswith("No layout that fits meets TPOT 1 us: ") for line in found.summary)
    page = shown(overview(found))
    assert "beyond limits" in page


def test_with_fewer_sequences_the_limits_are_kept():
    one = plan(DENSE, target(4, concurrency=512))
    limit = one.best.tpot_s.value * 0.5
    limited = msgspec.structs.replace(target(4, concurrency=512), limits=Limits(tpot_s=limit))
    found = plan(DENSE, limited)
    kept = [point for point in found.front if point.within]
    assert kept and max(point.concurrency for point in kept) < 512
    assert any(line.startswith(f"With {max(point.concurrency for point in kept)} sequences instead of 512 ")
               for line in found.summary)


def test_trade_offs_have_a_table_for_each_latency():
    page = shown(overview(plan(sparse(), target(8)), front=True))
    assert "Throughput against TPOT" in page and "Throughput against TTFT" in page


def test_a_layout_is_explained_cause_by_cause():
    wanted = (Layout(tp=4, pp=2), Layout(tp=8), Layout(tp=3))
    found = plan(DENSE, target(6), explain=(Layout(tp=3, pp=2), Layout(tp=2, pp=3)), top=1)
    page = shown(explanation(found, (Layout(tp=3, pp=2), Layout(tp=2, pp=3))))
    assert "tp=3 pp=2: Number" in page and "Against" in page and "Memory of the fullest device" in page
    assert "tp=2 pp=3: rejected" in page and "9 heads cannot be shared by 2 ranks" in page
    table = next(part for part in page.split("Time for a token")[1:])
    assert "in all" in table and "others" in page
    assert shown(explanation(found, wanted[2:])).strip() == "tp=3: not looked at."


def test_the_first_is_explained_alone():
    found = plan(DENSE, target(1))
    page = shown(explanation(found, (Layout(),)))
    assert page.startswith("one device: First of 1 that fit") and "Against" not in page


def test_training_is_explained_too():
    on = target(8, kind="train", global_batch=64)
    first = plan(DENSE, on)
    second = first.training[1]
    page = shown(explanation(first, (second.layout,)))
    assert "Time of a step" in page and f"Against {first.training[0].layout.text}" in page
    assert first.summary[1].startswith(f"Next is {second.layout.text}: ")


def test_times_of_a_step_have_their_interval():
    found = plan(DENSE, target(8, kind="train", global_batch=64))
    step, page = found.training[0].step_s, shown(overview(found))
    interval = format_interval(step.value, step.low, step.high, "s")
    assert f"a step takes {interval}, of it " in found.summary[0]
    assert step.low < step.value < step.high and interval[interval.index("("):] in page


def test_gaps_are_between_passes_where_tokens_are_proposed():
    load = {"arrival_rate": 0.1, "output_tokens": 50}
    plain, proposed = (plan(DENSE, target(2, **load, **more)).summary[0] for more in (
        {}, {"draft_tokens": 2, "acceptance_length": 2.5}))
    assert "between tokens p50" in plain and "between passes, which give 2.5 tokens each, p50" in proposed


def test_the_contract():
    found = plan(sparse(), target(4))
    value = json.loads(json.dumps(to_contract(found)))
    assert {"plans", "rejected", "evaluated", "seconds"} <= set(value)
    first, best = value["plans"][0], found.candidates[0]
    assert {"layout", "fits", "bytes_per_device", "ttft_s", "tpot_s", "tokens_per_s_per_device", "step_s", "limits",
            "explanation"} <= set(first)
    assert first["tokens_per_s_per_device"]["value"] == best.tokens_per_s.value / 4
    assert set(first["ttft_s"]) == {"value", "low", "high"} and first["step_s"] is None
    assert first["layout"]["tp"] == best.layout.tp
    rejected = to_contract(plan(DENSE, target(2)))["rejected"]
    assert {"layout", "rule", "message"} == set(rejected[0])
