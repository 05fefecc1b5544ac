"""What people and programs see of a graph: tables for the terminal, and the JSON of `dayzero trace`.

Text from releases is never read as markup.
"""

from .breaks import breaks_tables
from .contract import from_contract, split_missing, text_parameters, to_contract
from .differences import diff_tables
from .overview import VIEWS, overview
from .support import support_tables
from .tables import control_flow_table, hot_spots, kind_tables, notes, operators_table
from .tree import call_tree

__all__ = ["VIEWS", "breaks_tables", "call_tree", "control_flow_table", "diff_tables", "from_contract", "hot_spots",
           "kind_tables", "notes", "operators_table", "overview", "split_missing", "support_tables", "text_parameters",
           "to_contract"]
