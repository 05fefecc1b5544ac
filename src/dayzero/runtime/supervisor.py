"""The process between a launch and its ranks: torchrun's agent on this machine alone, through its library interface.

Started as `python -m dayzero.runtime.supervisor FOLDER RANKS`. It writes FOLDER/exits.json: the exit code of each rank.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

from dayzero.backends.process import die_with_parent
from dayzero.schema import to_json
from dayzero.schema.store import write_atomic

_GRACE = 3  # seconds that the other ranks have to end by themselves when one has died


def main(folder: Path, ranks: int) -> None:
    """Run the ranks to their end."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=ranks, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1", max_restarts=0, shutdown_timeout=_GRACE)  # fmt: skip
    exits: dict[str, int] = {str(rank): 0 for rank in range(ranks)}
    try:
        elastic_launch(config, sys.executable)("-u", "-m", "dayzero.runtime.worker", str(folder))
    except ChildFailedError as error:
        exits = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
    write_atomic(folder / "exits.json", to_json(exits))


if __name__ == "__main__":
    die_with_parent()
    main(Path(sys.argv[1]), int(sys.argv[2]))
