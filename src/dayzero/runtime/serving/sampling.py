"""The next token of each row of a batch.

A drawn token is the one whose score, logit / temperature + noise, is the largest: with Gumbel noise that is a draw by
probability (Maddison, Tarlow and Minka 2014, arXiv:1411.0030). The noise of a token is a function of seed, position
and the token's id alone, by a counter-based generator (Philox 4x64-10: Salmon et al. 2011), so that other processes,
ranks, batches and versions of Python draw the same; rounding changes a token only where two scores are nearly equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
import torch

from dayzero.runtime.pages import Failure, Row
from dayzero.schema import Sampling

NOT_FINITE = "the model's logits are not finite numbers"
_WORD = 1 << 64


def choose(logits: torch.Tensor, rows: Sequence[Row]) -> tuple[dict[int, int], list[Failure]]:
    """Tokens of the rows that want one, from [batch, vocabulary]; a row without a finite best is a failure."""
    best, likeliest = logits.max(-1)
    finite, greedy = best.isfinite().tolist(), likeliest.tolist()
    tokens, failures = {}, []
    for number, row in enumerate(rows):
        if not finite[number]:
            failures.append(Failure(row.sequence, NOT_FINITE))
        elif row.sampling is not None:
            drawn = row.sampling.temperature > 0
            tokens[row.sequence] = (draw(logits[number], row.sampling, row.end) if drawn
                                    else greedy[number])
    return tokens, failures


def draw(logits: torch.Tensor, sampling: Sampling, position: int) -> int:
    """The token at `position` from [vocabulary]; the same seed and position give the same one."""
    return int(scores(logits, sampling, position).argmax())


def scores(logits: torch.Tensor, sampling: Sampling, position: int) -> torch.Tensor:
    """[vocabulary] f64, of which the largest is drawn; -inf where `top_k` and then `top_p` leave nothing."""
    scaled = logits.double().cpu() / sampling.temperature
    noise = torch.from_numpy(_gumbel(len(scaled), sampling.seed, position))
    found: torch.Tensor = (scaled + noise).masked_fill(~_left(scaled, sampling), -inf)
    return found


def _left(scaled: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """[vocabulary] of bools: the `top_k` likeliest, of these the fewest that reach `top_p`. Of equal ones the first."""
    kept = torch.ones(len(scaled), dtype=torch.bool)
    if not sampling.top_k and sampling.top_p >= 1:
        return kept
    order = scaled.sort(descending=True, stable=True)
    count = min(sampling.top_k or len(scaled), len(scaled))
    chances = order.values[:count].softmax(-1)
    reached = int((chances.cumsum(-1) - chances < sampling.top_p).sum())
    return kept.fill_(False).index_fill_(0, order.indices[:max(1, reached)], True)


def _gumbel(count: int, seed: int, position: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """[count]: -log(-log(u)), u in (0, 1) with 52 bits."""
    words = np.random.Philox(key=np.array([seed % _WORD, position % _WORD], np.uint64)).random_raw(count)
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = -np.log(-np.log(uniform))
    return found
