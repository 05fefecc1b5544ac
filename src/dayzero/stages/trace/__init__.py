"""Trace: the operators that a model's own code runs, seen without weights. Importing it does not import torch."""

from . import formula
from .agreement import Agreement, agree
from .breaks import Break, Exported, foreseen, try_export
from .diff import Diff, compare
from .ledger.consumption import consumption, ledgers
from .ledger.destinations import coverage
from .support import Support, operator_support
from .tracer import trace
from .views import (
    VIEWS,
    breaks_tables,
    call_tree,
    control_flow_table,
    diff_tables,
    from_contract,
    hot_spots,
    kind_tables,
    operators_table,
    overview,
    support_tables,
    to_contract,
)
from .views.agreements import agreement_tables
from .without_code import graph_of

__all__ = [
    "VIEWS", "Agreement", "Break", "Diff", "Exported", "Support", "agree", "agreement_tables", "breaks_tables",
    "call_tree", "compare", "consumption", "control_flow_table", "coverage", "diff_tables", "foreseen", "formula",
    "from_contract", "graph_of", "hot_spots", "kind_tables", "ledgers", "operator_support", "operators_table",
    "overview", "support_tables", "to_contract", "trace", "try_export",
]  # fmt: skip
