"""Entry of one process of the host probe: its parent's number, then the arguments of `cpu_probe.main`.

It dies with its parent from the start: importing torch takes seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .process import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    from .cpu_probe import main

    main(Path(sys.argv[2]), *map(int, sys.argv[3:6]))
