"""Runs one release in many layouts, every rank a process of its own with its weights in tiers.

    python -m tests.dist.tiers_ranks ROOT OUT DTYPE BUDGET [--own] LAYOUT...

With --own the release's own code runs. BUDGET is that of each rank, as JSON; where it is not of weights alone, what the
process takes before comes on top. For each layout one line of JSON is appended to OUT: {"layout", "error" or "ranks":
[{"tokens": equal to those of one process in memory, "error": of the prompt's logits, relative, "over": bytes of private
memory above the budget at most, "elements": of its share, "record": of its tiers}]}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from tests.support.forked import ranks

from dayzero.backends import host
from dayzero.runtime.memory import PeakSampler, release_unused
from dayzero.runtime.rank import Rank
from dayzero.runtime.sharding import Mesh
from dayzero.schema import Budget, Layout

from .equality_ranks import answered, one

Reference = list[tuple[torch.Tensor, torch.Tensor]]


def run(number: int, folder: Path, root: Path, dtype: str, own: bool, given: Budget, layout: Layout) -> Any:
    """One rank."""
    release_unused()
    budget = given if given.weights or given.host is None else msgspec.structs.replace(
        given, host=host.private_memory() + given.host)
    with PeakSampler(lambda: "") as sampler:
        rank = Rank(root, dtype, own=own, budget=budget, threads=2)
        rank.prepare(layout, number)
        mesh = Mesh(layout, number).join(dist.FileStore(f"{folder}/store", layout.world_size))
        rank.join(mesh)
        assert rank.tiers is not None and rank.shares is not None
        rank.tiers.measure(0.1)
        rank.tiers.reset()
        logits, tokens = answered(rank, own)
    record = msgspec.to_builtins(rank.tiers.statistics())
    elements = sum(each.elements for each in rank.shares.rows)
    rank.leave()
    return mesh.place.replica, logits, tokens, sampler.peak - (budget.host or 0), elements, record


def compared(root: Path, dtype: str, own: bool, given: Budget, text: str, reference: Reference) -> dict[str, Any]:
    """What is written of one layout."""
    layout = Layout.parse(text)
    made = ranks(run, layout.world_size, root, dtype, own, given, layout)
    if failed := [each for each in made if isinstance(each, str)]:
        return {"layout": text, "error": failed}
    rows = []
    for replica, logits, tokens, over, elements, record in made:
        wanted = reference[replica]
        rows.append({"error": float((logits.float() - wanted[0].float()).norm() / wanted[0].float().norm()),
                      "tokens": bool(torch.equal(tokens, wanted[1])), "over": over, "elements": elements,
                      "record": record})
    return {"layout": text, "ranks": rows}


def main(arguments: list[str]) -> None:
    """Command line."""
    own = "--own" in arguments
    root, out, dtype, budget, *layouts = (each for each in arguments if each != "--own")
    torch.set_num_threads(1)
    given = msgspec.json.decode(budget, type=Budget)
    _, reference = one(Path(root), own, max(Layout.parse(text).dp for text in layouts), dtype)
    release_unused()
    with Path(out).open("a") as file:
        for text in layouts:
            file.write(json.dumps(compared(Path(root), dtype, own, given, text, reference)) + "\n")
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
