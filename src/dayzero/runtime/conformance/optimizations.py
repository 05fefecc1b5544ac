"""Check: each choice of an implementation computes the same, and leaves everything as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from dayzero.backends import Backend, Chosen, chosen
from dayzero.errors import UsageError

from .models import TOLERANCE, difference, ids, small_model
from .nouns import Failure, require

_WHAT = Chosen.__struct_fields__


def parts(backend: Backend) -> Iterator[tuple[str, Callable[[], str]]]:
    """Each choice alone, all together, and one that there is not."""
    for what in _WHAT:
        for name in backend.choices().get(what, ()):
            yield f"{what}={name}", partial(_choice, backend, {what: name})
    yield "together", lambda: _choice(backend, {what: names[-1] for what, names in backend.choices().items() if names})
    yield "unknown", lambda: _unknown(backend)


def _choice(backend: Backend, wanted: Mapping[str, str]) -> str:
    model, given = small_model("dense").to(backend.device()), ids().to(backend.device())
    before = _state(model)
    with torch.no_grad():
        plain = model(given).logits
        with backend.optimizations(model, **wanted) as told:
            require(chosen() == told, f"chosen() says {chosen()} inside")
            for what, name in wanted.items():
                require(getattr(told, what) == name, f"{what} is {getattr(told, what)!r}, not {name!r}")
            other = model(given).logits
    require(_state(model) == before, f"not as before: {_changed(before, _state(model))}")
    require(difference(other, plain) <= TOLERANCE, f"logits differ by {difference(other, plain):.1e}")
    try:
        with backend.optimizations(model, **wanted):
            raise ArithmeticError
    except ArithmeticError:
        pass
    require(_state(model) == before, f"not as before after an error: {_changed(before, _state(model))}")
    return f"logits differ by {difference(other, plain):.1e}; as before afterwards"


def _unknown(backend: Backend) -> str:
    for what in _WHAT:
        try:
            with backend.optimizations(**{what: "no_such_choice"}):
                pass
        except UsageError:
            continue
        raise Failure(f"{what}='no_such_choice' is accepted")
    return "what there is not is refused"


def _state(model: Any) -> dict[str, Any]:
    """Everything that a context may set: of torch, of the model, of dayzero."""
    kernels: Any = torch.backends.cuda
    return {
        "flash": kernels.flash_sdp_enabled(), "efficient": kernels.mem_efficient_sdp_enabled(),
        "math": kernels.math_sdp_enabled(), "cudnn": kernels.cudnn_sdp_enabled(), "chosen": chosen(),
        "attention": model.config._attn_implementation, "cache": model.generation_config.cache_implementation,
        "forwards": tuple(name for name, module in model.named_modules() if "forward" in vars(module)),
        "threads": torch.get_num_threads(), "dtype": torch.get_default_dtype(),
    }


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {before[name]!r} -> {after[name]!r}" for name in before if before[name] != after[name])
