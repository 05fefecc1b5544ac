"""A recording of a release in this process, run by the serving engine."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dayzero.runtime.rank import Rank
from dayzero.runtime.recording import record
from dayzero.runtime.recording.paged import Paged
from dayzero.runtime.recording.reloaded import Reloaded
from dayzero.runtime.serving import BUDGET
from dayzero.runtime.sharding import Mesh
from dayzero.schema import Layout

from .reference import plain

_DECODED = 4
"""Last tokens that are given one by one where nobody says how many: something has to follow a reload."""
Choose = Callable[[Any], contextlib.AbstractContextManager[None]]


def recorded_served(root: Path, own: bool, dtype: str, tokens: Sequence[Sequence[int]], folder: Path, choose: Choose, *,
                    tier: str = "", chunk: int = 0, decode: int = 0) -> None:
    """A golden dump. `choose`: the model's operators, while it is entered; `tier`: host or disk, where the cache goes
    after each step; empty: it stays. Raises what the engine raises."""
    rank = Rank(root, dtype, own=own, threads=torch.get_num_threads())
    rank.prepare(Layout(), 0)
    rank.join(Mesh(Layout(), 0))
    plain(rank.model)
    every: Mapping[int, Sequence[int]] = {number: tuple(each) for number, each in enumerate(tokens)}
    how: dict[str, Any] = {"budget": chunk or BUDGET, "decode": decode or _DECODED}
    with choose(rank.model), tempfile.TemporaryDirectory(prefix="dayzero-cache-") as disk, torch.no_grad():
        paged = Reloaded(rank, every, tokens, tier=tier, folder=Path(disk), **how) if tier else Paged(
            rank, every, tokens, **how)
        with record(rank.model, folder, root=root, rows=paged.rows):
            paged.run()
