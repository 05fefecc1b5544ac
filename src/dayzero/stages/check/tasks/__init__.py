"""Task scores of two runs: whether one lost more than a margin, and what so many items can tell at all. No torch."""

from .samples import read_evaluation, stated
from .verdict import MARGINS, compare_scores
from .words import evaluation_table, score_table, to_contract, verdict_of

__all__ = ["MARGINS", "compare_scores", "evaluation_table", "read_evaluation", "score_table", "stated", "to_contract",
           "verdict_of"]
