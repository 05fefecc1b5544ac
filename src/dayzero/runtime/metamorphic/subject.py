"""The model under test: its logits for any batch, cache or positions, and what rounding alone does to them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from dayzero.floats import roundoff
from dayzero.runtime.recording.rank import cache_of, perturbed
from dayzero.runtime.sharding import whole
from dayzero.schema.relation import Held

FAR = sys.float_info.max
FACTOR, DRAWS = 10.0, 3
"""A relation may be off by so many times what rounding errors in the embedding did in the worst of so many runs."""
FLOOR = 16.0
"""And by so many roundoffs at least: other sizes of a batch are summed up in another order."""

class Subject:
    """Runs on every rank of a layout alike."""

    def __init__(self, model: Any, dtype: str, seed: int, vocabulary: int) -> None:
        self.model, self.dtype, self.vocabulary = model, dtype, vocabulary
        self._generator = torch.Generator().manual_seed(seed)
        self._noise: dict[int, float] = {}

    def tokens(self, batch: int, length: int) -> torch.Tensor:
        """[batch, length] random ids."""
        return torch.randint(0, self.vocabulary, (batch, length), generator=self._generator)

    def logits(self, ids: torch.Tensor, **more: Any) -> torch.Tensor:
        """[batch, tokens] -> [batch, tokens, vocabulary] in f32."""
        with torch.no_grad():
            return _values(self.model(input_ids=ids, use_cache=False, **more).logits)

    def pieces(self, ids: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """The same, in pieces of these sizes that each go on from the cache."""
        made, more, start = [], dict[str, Any](), 0
        with torch.no_grad():
            for size in sizes:
                out = self.model(input_ids=ids[:, start:start + size], use_cache=True, **more)
                more, start = cache_of(out), start + size
                made.append(_values(out.logits))
        return torch.cat(made, 1)

    def noise(self, ids: torch.Tensor) -> float:
        """Largest relative L2 of a position's logits that rounding errors in the embedding lead to."""
        length = ids.shape[1]
        if length not in self._noise:
            plain = self.logits(ids[:1])
            found = []
            for draw in range(DRAWS):
                with perturbed(self.model, self.roundoff, draw):
                    found.append(distance(self.logits(ids[:1]), plain))
            self._noise[length] = max(found)
        return self._noise[length]

    def held(self, name: str, got: torch.Tensor, expected: torch.Tensor, ids: torch.Tensor, detail: str = "") -> Held:
        """Logits that have to be the same within noise."""
        noise = self.noise(ids)
        return Held(name=name, observed=distance(got, expected), tolerance=max(FACTOR * noise, FLOOR * self.roundoff),
                    source=f"{FACTOR:g} times what a rounding error of {self.dtype} in the embedding does to a "
                           f"position's logits ({noise:.2g}, worst of {DRAWS}), at least {FLOOR:g} roundoffs",
                    detail=detail)

    @property
    def roundoff(self) -> float:
        """Of the dtype."""
        return roundoff(self.dtype)


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest relative L2 of a row of the last axis; rows far below the mean one count as a tenth of it."""
    if got.shape != expected.shape:
        return FAR
    gap = (got.double() - expected.double()).norm(dim=-1)
    size = expected.double().norm(dim=-1)
    found = (gap / size.clamp_min(float(size.mean()) / 10 or 1.0)).max() if gap.numel() else torch.tensor(0.0)
    return float(found) if bool(torch.isfinite(found)) else FAR


def skipped(name: str, why: str) -> Held:
    """A relation that cannot be tried."""
    return Held(name=name, observed=0.0, tolerance=0.0, source="", skipped=why)


def _values(logits: Any) -> torch.Tensor:
    found: torch.Tensor = whole(logits).detach().float().cpu()
    return found
