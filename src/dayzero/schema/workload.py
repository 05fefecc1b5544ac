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
    arrival_rate: float = 0.0
    """Requests that arrive in a second, over all replicas; 0: as many are always under way as `concurrency` says."""
    prefix_hit: float = 0.0
    """Share of the prompt's tokens that are found in the cache, from 0 to below 1."""
    draft_tokens: int = 0
    """Tokens that are proposed before each pass, which checks them; 0: no speculative decoding."""
    acceptance_length: float = 1.0
    """Tokens that a pass gives on average, the one that it computes itself among them: 1 to `draft_tokens` + 1."""
    expert_imbalance: float = 1.0
    """Tokens of the rank whose experts have most, in terms of the mean of all ranks; 1: experts are loaded evenly."""
    precisions: tuple[str, ...] = ()
    """Precisions of the weights that are compared; empty: the release as it is."""
    source: str = "target file"
    """Where it was stated: the target file, or the documented default."""

    @property
    def computed_tokens(self) -> int:
        """Tokens of a prompt that are computed: at least the last one, which gives the first answer."""
        return max(1, self.input_tokens - self.shared_tokens)

    @property
    def shared_tokens(self) -> int:
        """Tokens of a prompt that are found in the cache."""
        return int(self.input_tokens * self.prefix_hit)

    @property
    def load(self) -> str:
        """`64 sequences` or `3 requests a second`."""
        if self.arrival_rate:
            return f"{self.arrival_rate:.3g} requests a second"
        return f"{self.concurrency:,} sequence{'s' if self.concurrency != 1 else ''}"

    @property
    def text(self) -> str:
        """`64 sequences, 1,024 tokens in, 256 out`."""
        return f"{self.load}, {self.input_tokens:,} tokens in, {self.output_tokens:,} out"

    @property
    def length(self) -> int:
        """Tokens of a full-length sequence."""
        return self.input_tokens + self.output_tokens


class Limits(Noun, frozen=True, kw_only=True):
    """What a layout has to keep to; None: no limit."""

    ttft_s: float | None = None
    """Most seconds to the first token, on average."""
    tpot_s: float | None = None
    """Most seconds for each further token, on average."""
    devices: int | None = None
    """Most devices that may be taken."""
