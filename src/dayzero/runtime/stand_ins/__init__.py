"""Stand-ins for kernel libraries: code that a release ships imports and calls them, and one of our operators computes.

    install()    in the process that runs a release's code: absent libraries can be imported from then on
    fallbacks()  around a trace: the same operators where a model file has them as loops in Python
    called()     what was called how often; listening() tells each call as it is made
    MissingStandIn is raised by what has no stand-in

What stands for what is data: data/stand_ins.toml. `install` changes this process for good; a process that runs the
library's own models does not call it.
"""

from __future__ import annotations

import sys

from dayzero.data.stand_ins import stand_ins

from .availability import answer
from .finder import Finder, absent
from .recording import MissingStandIn, called, forget, listening
from .replacing import fallbacks

__all__ = ["MissingStandIn", "called", "fallbacks", "forget", "install", "listening"]


def install() -> tuple[str, ...]:
    """Make the kernel libraries that are not installed importable. Returns their names; a second call changes
    nothing."""
    there = next((each for each in sys.meta_path if isinstance(each, Finder)), None)
    if there is None:
        table = stand_ins()
        there = Finder(table, absent(table))
        sys.meta_path.append(there)
        answer(table.question, there.absent)
    return tuple(sorted(there.absent))
