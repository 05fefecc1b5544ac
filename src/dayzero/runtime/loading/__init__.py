"""Loading: each rank reads its own byte ranges of a release's files, straight into the memory where they stay.

    sums        of blocks of files that were verified
    files       headers, reads of ranges, what goes wrong with disks
    sources     a stored tensor as values
    quantised   the same for one with scales, and parts of it as they are stored
    codes       integers and narrow floats as they are stored
    words       integers in words along the inputs or outputs
    kept        parts of tensors that stay in memory as they are stored
    formats     which stored tensors together are one matrix
    pieces      where each value of a tensor lies, whatever is cut, stacked or turned
    located     tensors without data on which the library's own conversions are run
    names       which tensors of the files make which tensor of the model
    reading     reads into memory, by threads, in the order of the files
    checkpoint  all of it, for a model
"""

from .checkpoint import Checkpoint
from .cuts import Cut
from .kept import Kept

__all__ = ["Checkpoint", "Cut", "Kept"]
