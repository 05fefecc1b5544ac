"""The suite that says whether a backend does what the protocol says, on the devices that are here.

Every check compares with the host in f64, or with what the protocol states; none knows a backend. The suite loads
without torch.
"""

from .nouns import Conformance, Outcome
from .suite import CHECKS, check_backend

__all__ = ["CHECKS", "Conformance", "Outcome", "check_backend"]
