"""What `dayzero run --json` prints."""

from __future__ import annotations

from typing import Any

from dayzero.schema import LayoutRun, RunRecord


def to_contract(record: RunRecord) -> dict[str, Any]:
    """The first layout's run as {outputs, ranks, tokens_per_s, ttft_s, events, tiers}; `runs` has all, by layout.

    `tiers` is None: everything was held in memory.
    """
    runs = {each.layout.text: _run(each) for each in record.runs}
    return {**_run(record.runs[0]), "runs": runs, "environment": record.environment}


def _run(run: LayoutRun) -> dict[str, Any]:
    return {
        "layout": run.layout.text,
        "outputs": [{"prompt": each.prompt, "tokens": list(each.tokens), "text": each.text, "finish": each.finish}
                    for each in run.outputs],
        "ranks": [{"rank": each.rank, "peak_private_bytes": each.peak_private_bytes, "bytes_read": each.weight_bytes,
                   "seconds": each.load_seconds} for each in run.ranks],
        "tokens_per_s": run.tokens_per_s, "ttft_s": run.ttft_s, "tpot_s": run.tpot_s,
        "repeat_identical": run.repeat_identical, "events": list(run.events), "tiers": None,
    }  # fmt: skip
