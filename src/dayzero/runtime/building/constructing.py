"""How modules are made whose parameters get no data."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch

from dayzero.runtime.meta import kept_empty, parameters_on_meta, unfilled


@contextlib.contextmanager
def constructing(*, values: bool = False) -> Iterator[None]:
    """On the meta device, or with `values` only parameters; without values for weights, which have none there, and
    without looking for garbage among hundreds of thousands of modules that are all in use."""
    with contextlib.suppress(ImportError):  # it keeps, for good, the functions that are there when it is loaded
        import transformers.initialization  # noqa: F401
    names = [name for name in vars(torch.nn.init) if name.endswith("_") and not name.startswith("_")]
    plain = {name: getattr(torch.nn.init, name) for name in names}
    collecting = gc.isenabled()
    gc.disable()
    for name in names:
        setattr(torch.nn.init, name, lambda tensor, *_args, **_kwargs: tensor)
    try:
        with parameters_on_meta() if values else torch.device("meta"), unfilled(), kept_empty():
            yield
    finally:
        for name, function in plain.items():
            setattr(torch.nn.init, name, function)
        if collecting:
            gc.enable()
