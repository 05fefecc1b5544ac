"""One of the processes of the check of collectives: PARENT FOLDER RANK RANKS THREADS, see `backends/together.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from dayzero.backends import backends
from dayzero.backends.collectives import Collectives
from dayzero.backends.process import die_with_parent
from dayzero.schema import Layout, Noun, to_json

NAME_FILE = "backend"


class Found(Noun, frozen=True, kw_only=True):
    """What one process saw."""

    right: tuple[str, ...]
    """Collectives that gave what they have to."""
    wrong: tuple[str, ...]
    """Those that did not, and what they gave."""


def _reduce(own: Collectives, rank: int, device: torch.device) -> bool:
    value = torch.full((3, 2), rank + 1.0, device=device).T
    own.all_reduce(value)
    most = torch.tensor([rank], device=device)
    own.all_reduce(most, "max")
    return bool((value == 3).all()) and int(most.item()) == 1 and value.device.type == device.type


def _broadcast(own: Collectives, rank: int, device: torch.device) -> bool:
    value = torch.full((4,), float(rank), device=device)
    own.broadcast(value, 1)
    return bool((value == 1).all())


def _gather(own: Collectives, rank: int, device: torch.device) -> bool:
    made = own.all_gather(torch.full((2, 2), rank, dtype=torch.int64, device=device))
    return [int(each.sum().item()) for each in made] == [0, 4] and all(each.device.type == device.type for each in made)


def _scatter(own: Collectives, rank: int, device: torch.device) -> bool:
    made = own.reduce_scatter([torch.full((2,), 10.0 * place + rank, device=device) for place in range(2)])
    return made.cpu().tolist() == [20.0 * rank + 1] * 2


def _exchange(own: Collectives, rank: int, device: torch.device) -> bool:
    """Rank r gives place + 1 values to each place, all of them 10 r + place."""
    given = [torch.full((place + 1,), 10 * rank + place, dtype=torch.int32, device=device) for place in range(2)]
    made = own.all_to_all(given, [(rank + 1,), (rank + 1,)])
    return [each.cpu().tolist() for each in made] == [[10 * source + rank] * (rank + 1) for source in range(2)]


def _transfer(own: Collectives, rank: int, device: torch.device) -> bool:
    value = torch.arange(5, device=device).to(torch.bfloat16) if rank == 0 else torch.zeros(
        5, dtype=torch.bfloat16, device=device)
    if rank == 0:
        own.send(value, 1)
    else:
        own.recv(value, 0)
    return value.cpu().tolist() == [0, 1, 2, 3, 4]


_ALL: dict[str, Callable[[Collectives, int, torch.device], bool]] = {
    "all_reduce": _reduce, "broadcast": _broadcast, "all_gather": _gather, "reduce_scatter": _scatter,
    "all_to_all": _exchange, "send": _transfer}


def main() -> None:
    """Write what was found."""
    parent, folder, rank, ranks, threads = int(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:6])
    die_with_parent(parent)
    torch.set_num_threads(threads)
    backend = backends().get((folder / NAME_FILE).read_text())
    device = backend.device(backend.parallel_plan(Layout(tp=ranks)).devices[rank])
    own = backend.collectives()
    own.open(rank, ranks, f"file://{folder / 'store'}")
    right: list[str] = []
    wrong: list[str] = []
    for name, call in _ALL.items():
        (right if call(own, rank, device) else wrong).append(name)
        own.barrier()
    own.barrier()
    target = folder / f"{rank}.json"
    part = target.with_suffix(".part")
    part.write_bytes(to_json(Found(right=tuple(right), wrong=tuple(wrong))))
    os.replace(part, target)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
