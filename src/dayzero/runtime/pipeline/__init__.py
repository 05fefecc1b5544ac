"""A model's layers shared out over ranks that work one after the other, whatever its code is.

Every stage runs the model's own outer code. Layers that it does not hold are placeholders: those before its own give
what the stage before has sent, and the first one after them ends the pass.
"""

from .flow import Flow, even_split, observe
from .part import Call, Part
from .pipeline import Pipeline

__all__ = ["Call", "Flow", "Part", "Pipeline", "even_split", "observe"]
