"""Runs one release in many layouts, every rank a process of its own, and compares with one process.

    python -m tests.dist.equality_ranks ROOT OUT [--own] LAYOUT...

For each layout one line of JSON is appended to OUT: {"layout", "error" or "cells": [[rank, relative error, tokens
equal, share of the parameters, operators that ran whole]]}.

Replicas have prompts of different lengths and write for different times, so that one of them is done before the others.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.support.forked import ranks
from transformers import DynamicCache

from dayzero.runtime.rank import Rank
from dayzero.runtime.sharding import Mesh, local
from dayzero.schema import Layout


FSDP = ",fsdp"
STEPS = 8


def prompts(vocabulary: int, replica: int) -> torch.Tensor:
    """Two of one length."""
    made = torch.Generator().manual_seed(7 + replica)
    return torch.randint(1, vocabulary - 1, (2, 11 + 5 * replica), generator=made)


def greedy(model: Any, ids: torch.Tensor, steps: int, own: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits of the prompt, tokens), with the library's cache, or the one that the release's own code makes."""
    key = "past_key_values" if own else "cache"
    logits, tokens, cache = None, [], None if own else DynamicCache(config=model.config)
    for step in range(steps):
        out = model(input_ids=ids if step == 0 else tokens[-1], use_cache=True,
                    **({} if cache is None else {key: cache}))
        cache = cache if cache is not None else out.past_key_values
        now = local(out.logits)
        logits = now if logits is None else logits
        tokens.append(now[:, -1:].argmax(-1))
    assert logits is not None
    return logits, torch.cat(tokens, 1)


def one(root: Path, own: bool, replicas: int, dtype: str = "f32"
        ) -> tuple[int, list[tuple[torch.Tensor, torch.Tensor]]]:
    """(parameters, what one process with all weights in memory gives for each replica's prompts)."""
    rank = Rank(root, dtype, own=own)
    rank.prepare(Layout(), 0)
    rank.join(Mesh(Layout(), 0))
    vocabulary = rank.model.config.get_text_config().vocab_size
    with torch.no_grad():
        made = [greedy(rank.model, prompts(vocabulary, each), STEPS + 3 * each, own) for each in range(replicas)]
    return rank.parameters, made


def answered(rank: Rank, own: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """As `greedy`, for the prompts of the rank's replica; others may go on for longer."""
    assert rank.mesh is not None
    replica = rank.mesh.place.replica
    with torch.no_grad():
        ids = prompts(rank.model.config.get_text_config().vocab_size, replica)
        made = greedy(rank.model, ids, STEPS + 3 * replica, own)
        rank.settle()
    return made


def run(number: int, folder: Path, root: Path, own: bool, text: str) -> Any:
    """One rank."""
    layout = Layout.parse(text.removesuffix(FSDP))
    rank = Rank(root, "f32", own=own, threads=1)
    rank.prepare(layout, number, fsdp=text.endswith(FSDP))
    mesh = Mesh(layout, number).join(dist.FileStore(f"{folder}/store", layout.world_size))
    rank.join(mesh)
    assert rank.shares is not None
    logits, tokens = answered(rank, own)
    elements, whole = sum(each.elements for each in rank.shares.rows), sorted(mesh.tp.whole + mesh.width.whole)
    rank.leave()
    return mesh.place.replica, logits, tokens, elements, whole


def compared(root: Path, own: bool, text: str, parameters: int, reference: list[tuple[torch.Tensor, torch.Tensor]]
             ) -> dict[str, Any]:
    """What is written of one layout."""
    made = ranks(run, Layout.parse(text.removesuffix(FSDP)).world_size, root, own, text)
    if failed := [each for each in made if isinstance(each, str)]:
        return {"layout": text, "error": failed[0]}
    cells = []
    for number, (replica, logits, tokens, elements, whole) in enumerate(made):
        wanted = reference[replica]
        error = float((logits - wanted[0]).norm() / wanted[0].norm())
        cells.append([number, error, bool(torch.equal(tokens, wanted[1])), elements / parameters, whole])
    return {"layout": text, "cells": cells}


def main(arguments: list[str]) -> None:
    """Command line."""
    own = "--own" in arguments
    root, out, *layouts = (each for each in arguments if each != "--own")
    torch.set_num_threads(1)
    most = max(Layout.parse(text.removesuffix(FSDP)).dp for text in layouts)
    parameters, reference = one(Path(root), own, most)
    with Path(out).open("a") as file:
        for text in layouts:
            file.write(json.dumps(compared(Path(root), own, text, parameters, reference)) + "\n")
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
