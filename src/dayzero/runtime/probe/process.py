"""One process of a probe that dayzero started: PARENT FOLDER RANK RANKS THREADS, see `backends/together.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from dayzero.backends.process import die_with_parent
from dayzero.errors import DayzeroError


def main(folder: Path, rank: int, ranks: int, threads: int) -> None:
    """Measure and write."""
    import torch

    from dayzero.schema import from_json, to_json
    from dayzero.schema.store import write_atomic

    from .found import Wish
    from .rank import measure

    torch.set_num_threads(threads)
    wish = from_json((folder / "wish.json").read_bytes(), Wish)
    try:
        found = measure(wish, rank, ranks, f"file://{folder}/rendezvous")
        write_atomic(folder / f"{rank}.json", to_json(found))
    except (DayzeroError, OSError, RuntimeError) as error:  # the log is shown to the user
        sys.exit(f"rank {rank} of {ranks}: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    main(Path(sys.argv[2]), *map(int, sys.argv[3:6]))
