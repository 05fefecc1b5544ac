"""`python -m dayzero.runtime.confinement.ranks FOLDER RANKS ROOT [MORE ...]`: a supervisor and its ranks, which run
code of a release, in a network of their own in which there is nobody else; they read what is installed and the release,
and write to their folder and to those that are named more only. Standard library only, and no threads, before
everything is taken.

Where that cannot be had nothing runs: FOLDER/refusal says why.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .__main__ import readable_paths
from .landlock import confine
from .namespaces import leave_network

_LINKS = ("/sys/class/net", "/sys/bus/pci/devices")
"""Where communication looks for the devices that it may use."""


def confine_ranks(root: Path, writable: list[str]) -> None:
    """Give up the network, and all files but those that are installed, of the release, and in the folders that are
    `writable`. Raises OSError when that cannot be had."""
    code = [str(path.resolve()) for path in root.glob("**/*") if path.is_symlink()]  # a cache of a hub is links
    leave_network(loopback=True)
    confine(readable_paths([str(root), *code, *_LINKS]), [*writable, "/dev/null"], tcp=True)


def main(folder: Path, ranks: int, root: Path, *more: str) -> None:
    """Confine this process and what it starts, and supervise. `more`: folders that are there and may be written to."""
    try:
        confine_ranks(root, [str(folder), *more])
    except OSError as error:
        (folder / "refusal").write_text(f"ranks that run the release's own code cannot be confined here: {error}")
        return
    from dayzero.backends.process import die_with_parent  # not before: its libraries may start threads
    from dayzero.runtime import supervisor

    die_with_parent()
    supervisor.main(folder, ranks)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
