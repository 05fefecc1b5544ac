"""Records golden dumps of any torch model, whoever runs it.

    with record(model, "folder"):
        model(input_ids)

Hooks take what modules take and give, statistics are made at once, and a thread writes while the model goes on. What is
read back is in `dayzero.runtime.golden`.
"""

from .context import Recording, record
from .sampling import Sampling

__all__ = ["Recording", "Sampling", "record"]
