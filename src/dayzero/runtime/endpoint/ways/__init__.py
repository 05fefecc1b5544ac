"""The forms in which servers give the logprobs of given tokens. Each asks, and reads the answer."""

from .base import Answer, OtherTokens, Question, Way
from .completions import ECHO, ECHO_IDS, PROMPT
from .forced import FORCED, STEPS
from .native import INPUT, PREFILL

__all__ = ["WAYS", "Answer", "OtherTokens", "Question", "Way"]

WAYS: tuple[Way, ...] = (PROMPT, INPUT, ECHO_IDS, ECHO, FORCED, PREFILL, STEPS)
"""What tells most, and takes least, first."""
