"""Check: small models give the host's logits, and the host's tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from dayzero.backends import Backend
from dayzero.data.conformance import conformance_models

from .nouns import Failure, require

TOLERANCE = 1e-5
"""Relative difference of logits in f32 from the host's in f64; two or three layers leave 3e-7."""
_NEW = 8


def parts(backend: Backend) -> Iterator[tuple[str, Callable[[], str]]]:
    """Each model."""
    for name in conformance_models():
        yield name, partial(_model, backend, name)


def small_model(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The model with random weights, always the same, on the host."""
    from transformers import AutoConfig, AutoModelForCausalLM

    facts = dict(conformance_models()[name])
    config = AutoConfig.for_model(facts.pop("model_type"), **facts)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # the library's own loop over experts, which torch computes in every dtype
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, experts_implementation="eager")
    return model.eval().to(dtype)


def ids() -> torch.Tensor:
    """Token ids [2, 12]."""
    return 3 + torch.arange(24).view(2, 12) * 7 % 250


def difference(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference over that of the second."""
    left, right = got.cpu().double(), expected.cpu().double()
    return float((left - right).norm() / right.norm())


def _model(backend: Backend, name: str) -> str:
    device = backend.device()
    given = ids()
    with torch.no_grad():
        expected = small_model(name, torch.float64)(given).logits
        tokens = _continued(small_model(name), given)
        model = small_model(name).to(device)
        if stray := [each for each, value in model.named_parameters() if value.device.type != device.type]:
            raise Failure(f"after to({device}) these are not there: {', '.join(stray[:3])}")
        there = given.to(device)
        error = difference(model(there).logits, expected)
        require(error <= TOLERANCE, f"logits are off by {error:.1e}, {TOLERANCE:.0e} is allowed")
        got = _continued(model, there)
    require(torch.equal(got.cpu(), tokens), f"tokens {got.cpu().tolist()} instead of {tokens.tolist()}")
    return f"logits {error:.1e} from f64, {_NEW} tokens equal"


def _continued(model: Any, given: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=_NEW,
                                        min_new_tokens=_NEW, do_sample=False)
    return made[:, given.shape[1]:]
