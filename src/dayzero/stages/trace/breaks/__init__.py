"""What torch.compile and torch.export would stumble over: places that ask for values, operators without a rule for
shapes, kernel libraries, and side effects that stand in the source.

    foreseen(graph, release)   from the graph and the source text; runs nothing
    try_export(release)        really exports a few layers; needs torch and takes its time
"""

from .exported import Exported, try_export
from .foreseen import Break, foreseen

__all__ = ["Break", "Exported", "foreseen", "try_export"]
