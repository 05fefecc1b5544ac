"""plan: ModelSpec and Target to Plan. Memory and roofline cost of every layout, ranked, with reasons. No torch.

search enumerates and ranks; candidate puts one layout together; work counts flops and bytes, traffic what ranks send,
speeds says how fast; cost turns them into seconds. pareto, limits, sensitivity, smallest and families say what else
there is to know; reasons and explain put it into words, tables and contract show them.
"""

from .search import plan
from .words.contract import to_contract
from .words.tables import explanation, overview

__all__ = ["explanation", "overview", "plan", "to_contract"]
