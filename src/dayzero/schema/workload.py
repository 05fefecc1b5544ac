"""Workload: what the model is used for."""

from __future__ import annotations

from typing import Literal

from .base import Noun


class Workload(Noun, frozen=True, kw_only=True):
    """Serving requests of one shape, or training steps of one shape."""

    kind: Literal["serve", "train"]
    """serve or train."""
    input_tokens: int
    """Tokens of a prompt (serve) or of a sequence (train)."""
    output_tokens: int
    """Tokens generated for each prompt."""
    concurrency: int
    """Sequences that are served together, over all replicas."""
    max_batched_tokens: int
    """Most prompt tokens that one prefill step takes."""
    global_batch: int = 0
    """Sequences of a training step; 0 when serving."""
    scheme: str = ""
    """Precision of the matrix products in training, such as fp8; empty: the dtype of the model."""
    total_tokens: int = 0
    """Tokens that are to be trained on; 0: not stated."""
    source: str = "target file"
    """Where it was stated: the target file, or the documented default."""

    @property
    def length(self) -> int:
        """Tokens of a full-length sequence."""
        return self.input_tokens + self.output_tokens
