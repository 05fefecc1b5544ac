"""Tokens are drawn by their probabilities, from those that may be, and whatever order logits come in."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from dayzero.runtime.serving.sampling import draw  # noqa: E402
from dayzero.schema import Sampling  # noqa: E402

LOGITS = torch.tensor([2.0, -1.0, 0.5, 1.5, -3.0, 0.0])


def _shares(sampling: Sampling, count: int = 4000) -> list[float]:
    drawn = [draw(LOGITS, sampling, position) for position in range(count)]
    return [drawn.count(token) / count for token in range(len(LOGITS))]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_each_token_comes_as_often_as_is_likely(temperature: float) -> None:
    wanted = (LOGITS / temperature).softmax(-1).tolist()
    found = _shares(Sampling(temperature, seed=11))
    # 4 standard deviations of a share of 4000 draws
    assert all(abs(a - b) < 4 * (b * (1 - b) / 4000) ** 0.5 + 1e-3 for a, b in zip(found, wanted, strict=True))


def test_what_is_left_is_drawn_from_in_its_own_proportions() -> None:
    found = _shares(Sampling(1.0, top_k=2))
    assert [share > 0 for share in found] == [True, False, False, True, False, False]
    assert found[0] == pytest.approx(1 / (1 + 2.718281828**-0.5), abs=0.04)  # logits 2.0 and 1.5
    # of 0.47, 0.29, 0.11, 0.06 ... the first three together reach 0.8
    assert [share > 0 for share in _shares(Sampling(1.0, top_p=0.8))] == [True, False, True, True, False, False]
    assert _shares(Sampling(1.0, top_p=1e-9), 50)[0] == 1.0  # the likeliest is always left
    assert _shares(Sampling(1.0, top_k=99), 200) == _shares(Sampling(1.0), 200)


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(0, 2**32))
def test_roundings_change_nothing_but_their_own_tokens(seed: int, position: int, state: int) -> None:
    """Logits in another order of magnitude of rounding, in which neighbours change places, give the same token."""
    random = torch.Generator().manual_seed(state)
    logits = torch.randn(500, generator=random)
    other = logits + 1e-6 * torch.randn(500, generator=random)
    for sampling in (Sampling(1.0, seed=seed), Sampling(1.0, top_p=0.999, seed=seed)):
        found = draw(logits, sampling, position)
        if found != draw(other, sampling, position):  # one in some 10^4: two are as good
            scores = sorted(logits.tolist())
            assert min(b - a for a, b in pairwise(scores)) < 1e-4


def test_seeds_and_positions_are_independent() -> None:
    by_seed = [draw(LOGITS, Sampling(1.0, seed=seed), 7) for seed in range(300)]
    by_position = [draw(LOGITS, Sampling(1.0, seed=7), position) for position in range(300)]
    same = sum(a == b for a, b in zip(by_seed, by_position, strict=True))
    assert same < 150  # of independent draws some 96 are equal
    assert len(set(by_seed)) > 3


def test_the_same_on_every_machine() -> None:
    """Worked out by hand from Philox 4x64-10 with the key (seed, position), whose counter begins at 1: word i is token
    i's, its upper 52 bits the uniform number."""
    logits = torch.tensor([2.0, -1.0, 0.5, 1.5, 0.0, 1.0])
    seen = [draw(logits, Sampling(temperature=1.0, seed=7), position) for position in range(12)]
    assert seen == [0, 0, 3, 0, 3, 3, 0, 5, 5, 3, 2, 5]
    assert draw(logits, Sampling(temperature=1.0, seed=-1), 3) == draw(
        logits, Sampling(temperature=1.0, seed=2**64 - 1), 3)
