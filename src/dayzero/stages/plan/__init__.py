"""plan: ModelSpec and Target to Plan. Memory and roofline cost of every layout, ranked, with reasons. No torch.

search enumerates and ranks; candidate puts one layout together; work counts flops and bytes, traffic what ranks send,
speeds says how fast; cost turns them into seconds; explain
and notes into words.
"""

from .explain import overview, to_contract
from .search import plan

__all__ = ["overview", "plan", "to_contract"]
