"""Relations of drawn tokens: they come by the probability that the model gives them, and a seed gives the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dayzero.runtime.recording.rank import cache_of
from dayzero.runtime.serving.sampling import draw, scores
from dayzero.runtime.sharding import whole
from dayzero.schema import Sampling
from dayzero.schema.relation import DRAWN, DRAWN_STEPS, Held

from .sequences import LENGTH
from .subject import FACTOR, Subject

SEEDS = (1, 2, 3)
TEMPERATURE, TOP_K, TOP_P = 0.8, 40, 0.95
SETTINGS = ((1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 0, 1.0), (1.0, 5, 1.0), (1.0, 0, 0.8), (0.7, 20, 0.9))
"""(temperature, top k, top p) whose draws are counted."""
LIKELIEST, DRAWS, EXPECTED, SURE = 64, 1000, 5.0, 4.753
"""Tokens that are drawn from, so that counts are large; draws; least count that is expected of a class (Cochran 1954);
quantile of the normal distribution of one chance in a million."""


def sampling(subject: Subject) -> Iterator[Held]:
    """All of them."""
    ids = subject.tokens(1, LENGTH)
    first = _all(subject, ids)
    again = _all(subject, ids)
    other = _generated(subject, ids, _how(SEEDS[0] + 100))[0]
    yield Held(name=f"{DRAWN}, again", observed=float(_unlike(first[0], again[0])), tolerance=0.0,
               source="the same tokens", detail=f"{len(first[0])} tokens; with another seed "
               f"{_unlike(first[0][:DRAWN_STEPS], other)} of {DRAWN_STEPS} are other ones")
    yield from _counted(subject, ids)
    yield _over_layouts(subject, ids, *first)


def _how(seed: int) -> Sampling:
    return Sampling(temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P, seed=seed)


def _over_layouts(subject: Subject, ids: torch.Tensor, tokens: list[int], margins: list[float]) -> Held:
    """Compared with other layouts' by who started them: here it always holds. The tolerance is how near two scores may
    be for rounding to exchange them."""
    plain = subject.logits(ids)[0, -1]
    near = 2 * FACTOR * max(subject.noise(ids), subject.roundoff) * float(plain.abs().max()) / TEMPERATURE
    return Held(name=DRAWN, observed=0.0, tolerance=near, source="", tokens=tuple(tokens), margins=tuple(margins))


def _all(subject: Subject, ids: torch.Tensor) -> tuple[list[int], list[float]]:
    made = [_generated(subject, ids, _how(seed)) for seed in SEEDS]
    return [token for tokens, _ in made for token in tokens], [margin for _, margins in made for margin in margins]


def _generated(subject: Subject, ids: torch.Tensor, how: Sampling) -> tuple[list[int], list[float]]:
    """(tokens after the prompt, by how much each one's score was above the next): with the cache."""
    tokens, margins, more = list[int](), list[float](), dict[str, Any]()
    given, length = ids, ids.shape[1]
    with torch.no_grad():
        for step in range(DRAWN_STEPS):
            out = subject.model(input_ids=given, use_cache=True, **more)
            more = cache_of(out)
            best = scores(whole(out.logits)[0, -1].float(), how, length + step).topk(2)
            tokens.append(int(best.indices[0]))
            margins.append(min(float(best.values[0] - best.values[1]), 1e9))
            given = torch.tensor([[tokens[-1]]])
    return tokens, margins


def _unlike(one: list[int], other: list[int]) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


def _counted(subject: Subject, ids: torch.Tensor) -> Iterator[Held]:
    """Pearson's chi-squared of what is drawn against the model's own probabilities."""
    logits = subject.logits(ids)[0, -1].topk(min(LIKELIEST, subject.vocabulary)).values
    for temperature, top_k, top_p in SETTINGS:
        seen = torch.zeros(len(logits), dtype=torch.float64)
        for seed in range(DRAWS):
            seen[draw(logits, Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed), LENGTH)] += 1
        observed, freedom = _chi_squared(seen, _chances(logits, temperature, top_k, top_p) * DRAWS)
        yield Held(name=f"draws at temperature {temperature:g}, top k {top_k or 'all'}, top p {top_p:g}",
                   observed=observed, tolerance=_quantile(freedom),
                   source=f"chi-squared with {freedom} degrees of freedom is larger once in a million",
                   detail=f"{DRAWS} seeds, the {len(logits)} likeliest tokens")


def _chances(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """[tokens], likeliest first: softmax, of the first `top_k`, of the first that reach `top_p`."""
    kept = (logits.double() / temperature)[:top_k or len(logits)].softmax(-1)
    before = kept.cumsum(-1) - kept
    kept = kept * (before < top_p)
    made = torch.zeros(len(logits), dtype=torch.float64)
    made[:len(kept)] = kept / kept.sum()
    return made


def _chi_squared(seen: torch.Tensor, expected: torch.Tensor) -> tuple[float, int]:
    """(statistic, degrees of freedom); rare tokens are one class. What is drawn and cannot be counts as far off."""
    often = expected >= EXPECTED
    counts = torch.cat([seen[often], seen[~often].sum()[None]])
    wanted = torch.cat([expected[often], expected[~often].sum()[None]])
    if bool((seen[expected == 0] > 0).any()):
        return float(DRAWS), len(wanted) - 1
    gap = (counts - wanted).square() / wanted.clamp_min(1.0)
    return float(gap.sum()), max(1, len(wanted) - 1)


def _quantile(freedom: int) -> float:
    """Of chi-squared (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + SURE * spread**0.5) ** 3)
