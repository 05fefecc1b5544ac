"""Training: work of a step, its time, its memory, and the search for the layout that trains fastest."""

from .flops import token_flops
from .setup import Recompute, Setup
from .step import Step, Work, seconds, stages_of, work

__all__ = ["Recompute", "Setup", "Step", "Work", "seconds", "stages_of", "token_flops", "work"]
