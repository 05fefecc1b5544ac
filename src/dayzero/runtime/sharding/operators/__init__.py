"""Operators on tensors of which every rank holds a part.

What an operator gives is in parts along the dimension that its input was cut along, or it is summed up over ranks and
plain. Where no rule says how, the parts are put together and every rank computes the whole: always right, counted, and
never chosen by a plan.
"""

from .attention import whole_functions
from .dispatch import run

__all__ = ["run", "whole_functions"]
