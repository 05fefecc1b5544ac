"""Runs one release in many layouts, every rank a process of its own, and compares with one process.

    python -m tests.dist.equality_ranks ROOT OUT [--own] LAYOUT...

For each layout one line of JSON is appended to OUT: {"layout", "error" or "cells": [[rank, relative error, tokens
equal, share of the parameters, operators that ran whole]]}.

Replicas have prompts of different lengths and write for different times, so that one of them is done before the others.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import DynamicCache

from dayzero.errors import DayzeroError
from dayzero.runtime.rank import Rank
from dayzero.runtime.sharding import Mesh, local
from dayzero.schema import Layout

FSDP = ",fsdp"
STEPS = 8
SECONDS = 300


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


def run(number: int, root: Path, own: bool, text: str, folder: str) -> None:
    """One rank."""
    torch.set_num_threads(1)
    layout, result = Layout.parse(text.removesuffix(FSDP)), Path(folder) / f"{number}.pt"
    try:
        rank = Rank(root, "f32", own=own, threads=1)
        rank.prepare(layout, number, fsdp=text.endswith(FSDP))
        mesh = Mesh(layout, number).join(dist.FileStore(f"{folder}/store", layout.world_size))
        rank.join(mesh)
        replica = mesh.place.replica
        assert rank.shares is not None
        with torch.no_grad():
            ids = prompts(rank.model.config.get_text_config().vocab_size, replica)
            logits, tokens = greedy(rank.model, ids, STEPS + 3 * replica, own)
            rank.settle()
        torch.save((replica, logits, tokens, sum(each.elements for each in rank.shares.rows),
                    sorted(mesh.tp.whole + mesh.width.whole)), result)
        rank.leave()
    except DayzeroError as error:
        torch.save(str(error), result)
    except Exception as error:
        torch.save(f"{type(error).__name__}: {error}", result)
    os._exit(0)  # a fork of a process with threads


def compared(root: Path, own: bool, text: str, parameters: int, reference: list[tuple[torch.Tensor, torch.Tensor]]
             ) -> dict[str, Any]:
    """What is written of one layout."""
    world = Layout.parse(text.removesuffix(FSDP)).world_size
    folder = tempfile.mkdtemp()
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=run, args=(number, root, own, text, folder)) for number in range(world)]
    for each in processes:
        each.start()
    end = time.monotonic() + SECONDS
    for each in processes:
        each.join(max(0.1, end - time.monotonic()))
        if each.is_alive():
            each.kill()
    cells = []
    for number in range(world):
        path = Path(folder) / f"{number}.pt"
        made = torch.load(path) if path.exists() else f"rank {number} did not finish"
        if isinstance(made, str):
            return {"layout": text, "error": made}
        replica, logits, tokens, elements, whole = made
        wanted = reference[replica]
        error = float((logits - wanted[0]).norm() / wanted[0].norm())
        cells.append([number, error, bool(torch.equal(tokens, wanted[1])), elements / parameters, whole])
    shutil.rmtree(folder)
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
