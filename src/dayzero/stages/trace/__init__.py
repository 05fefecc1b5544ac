"""Trace: the operators that a model's own code runs, seen without weights. Importing it does not import torch."""

from .consumption import consumption, ledgers
from .destinations import coverage
from .tracer import trace
from .views import call_tree, hot_spots, operators_table, overview, to_contract

__all__ = ["call_tree", "consumption", "coverage", "hot_spots", "ledgers", "operators_table", "overview", "to_contract",
           "trace"]
