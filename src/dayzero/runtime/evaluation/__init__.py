"""Scores of a model on texts and questions: ours, or those of lm-eval. What runs the model is a `Scorer`."""

from .bundled import DEFAULT, TASKS, WORDS, evaluate_bundled, joined
from .scorer import Asked, Scored, Scorer

__all__ = ["DEFAULT", "TASKS", "WORDS", "Asked", "Scored", "Scorer", "evaluate_bundled", "joined"]
