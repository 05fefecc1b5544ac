"""Operators on tensors of which every rank holds a part.

What an operator gives is in parts along the dimension that its input was cut along, or it is summed up over ranks and
plain. Where no rule says how, the parts are put together and every rank computes the whole: always right, counted, and
never chosen by a plan.
"""

from dayzero.runtime.sharding.sharded import Sharded

from .attention import FUNCTIONS
from .dispatch import run

Sharded.operators, Sharded.functions = staticmethod(run), FUNCTIONS
