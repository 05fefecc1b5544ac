"""The process between a launch and its ranks: torchrun's agent on this machine alone, through its library interface.

Started as `python -m dayzero.runtime.supervisor FOLDER RANKS`. It writes FOLDER/exits.json: the exit code of each rank.
Its own exit code is NO_SPACE when one of them had no space to write in.
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

from dayzero.backends.process import die_with_parent
from dayzero.schema import to_json
from dayzero.schema.store import write_atomic

from .space import NO_SPACE, exit_without_space

_GRACE = 3  # seconds that the other ranks have to end by themselves when one has died


def main(folder: Path, ranks: int) -> None:
    """Run the ranks to their end."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=ranks, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1", max_restarts=0, shutdown_timeout=_GRACE,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull))  # ranks keep their own logs  # fmt: skip
    exits: dict[str, int] = {str(rank): 0 for rank in range(ranks)}
    try:
        elastic_launch(config, sys.executable)("-u", "-m", "dayzero.runtime.worker", str(folder))
    except ChildFailedError as error:
        exits = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
    if NO_SPACE in exits.values():
        sys.exit(NO_SPACE)
    write_atomic(folder / "exits.json", to_json(exits))


if __name__ == "__main__":
    die_with_parent()
    with exit_without_space():
        main(Path(sys.argv[1]), int(sys.argv[2]))
