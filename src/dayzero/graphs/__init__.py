"""An operator graph seen from several sides: by operator, by layer kind, as a tree, against a device. No torch.

What the trace prints and what the report draws come from here, so that both show the same figures.
"""

from .items import Item, items, layer_list, phases
from .kinds import KindCost, by_kind
from .roofline import Spot, balance, bound_seconds, spots
from .tree import Branch, module_tree

__all__ = ["Branch", "Item", "KindCost", "Spot", "balance", "bound_seconds", "by_kind", "items", "layer_list",
           "module_tree", "phases", "spots"]
