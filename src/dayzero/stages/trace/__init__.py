"""Trace: the operators that a model's own code runs, seen without weights. Importing it does not import torch."""

from .consumption import consumption, ledgers
from .destinations import coverage
from .tracer import trace
from .views import (
    VIEWS,
    call_tree,
    control_flow_table,
    from_contract,
    hot_spots,
    kind_tables,
    operators_table,
    overview,
    to_contract,
)

__all__ = ["VIEWS", "call_tree", "consumption", "control_flow_table", "coverage", "from_contract", "hot_spots",
           "kind_tables", "ledgers", "operators_table", "overview", "to_contract", "trace"]
