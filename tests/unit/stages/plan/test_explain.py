"""The plan in words, on a terminal, and as the JSON of the contract."""

import io
import json

from rich.console import Console
from tests.support.plan_models import dense, device, sparse, target

from dayzero.stages.plan import overview, plan, to_contract

DENSE = dense()


def shown(found):
    console = Console(file=io.StringIO(), width=100)
    console.print(overview(found))
    return console.file.getvalue()


def test_the_terminal_shows_candidates_and_reasons():
    page = shown(plan(DENSE, target(2)))
    assert "dp=2" in page and "pp=2" in page and "shard-heads" in page
    assert "9 heads cannot be shared by 2 ranks" in " ".join(page.split())


def test_the_terminal_says_when_nothing_fits():
    page = " ".join(shown(plan(DENSE, target(2, on=device(memory_bytes=10**6)))).split())
    assert page.startswith("Nothing fits on this target. Nearest is pp=2. Does not fit: the fullest device needs")


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
