"""Training: work of a step, its time, its memory, and the search for the layout that trains fastest."""

from .explain import training_contract, training_table
from .flops import token_flops
from .search import plan_training
from .setup import Recompute, Setup
from .step import Step, Work, seconds, stages_of, whole, work

__all__ = ["Recompute", "Setup", "Step", "Work", "plan_training", "seconds", "stages_of", "token_flops",
           "training_contract", "training_table", "whole", "work"]
