"""Classes of shipped code that were written for an earlier version of the library, made fit for the installed one."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any


def adapt(package: str) -> tuple[str, ...]:
    """Adapt the model and config classes of all modules of the package that are loaded. Returns what was done, once
    each: nothing with a library that takes them as they are."""
    from transformers import PreTrainedConfig, PreTrainedModel

    if not hasattr(PreTrainedModel, "get_expanded_tied_weights_keys"):
        return ()
    done: dict[str, None] = {}
    for base, change in ((PreTrainedModel, _tied), (PreTrainedModel, _ties), (PreTrainedModel, _fused),
                         (PreTrainedConfig, _scaled)):
        for kind in _classes(package, base):
            if text := change(kind):
                done[text] = None
    return tuple(done)


def _classes(package: str, base: type) -> Iterator[type]:
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}."):
            yield from (value for value in vars(module).values() if isinstance(value, type)
                        and issubclass(value, base) and value.__module__ == name)


def _tied(kind: type) -> str:
    """A list of tied parameters becomes a table: of the head and of the embedding that it shares."""
    names = vars(kind).get("_tied_weights_keys")
    if not isinstance(names, list | tuple):
        return ""
    table = {str(name): _Embedding() for name in names}
    kind._tied_weights_keys = table  # type: ignore[attr-defined]
    kind.get_expanded_tied_weights_keys = _expanded  # type: ignore[attr-defined]
    return f"{kind.__name__}._tied_weights_keys: a list until version 5, now a table from parameter to parameter"


class _Embedding(str):
    """Stands for the weight of the input embedding."""


def _expanded(self: Any, all_submodels: bool = False) -> dict[str, str]:
    """Tied parameter -> the input embedding's weight, whatever that is called in this model."""
    from transformers import PreTrainedModel

    if all_submodels:
        plain: dict[str, str] = PreTrainedModel.get_expanded_tied_weights_keys(self, all_submodels=True)
        return plain
    if not getattr(self.config, "tie_word_embeddings", False):
        return {}
    embedding = self.get_input_embeddings()
    path = next(name for name, module in self.named_modules() if module is embedding)
    names = {name for name, _ in self.named_parameters(remove_duplicate=False)}
    return {name: f"{path}.weight" for name in self._tied_weights_keys if name in names and name != f"{path}.weight"}


def _ties(kind: type) -> str:
    """A method that ties weights and takes no arguments is called without those that were added later."""
    method = vars(kind).get("tie_weights")
    if not callable(method):
        return ""
    parameters = inspect.signature(method).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters) or "recompute_mapping" in [p.name for p in parameters]:
        return ""
    kind.tie_weights = _called_with(method, {each.name for each in parameters})  # type: ignore[attr-defined]
    return f"{kind.__name__}.tie_weights: called without the arguments that version 5 added"


def _called_with(method: Callable[..., Any], taken: set[str]) -> Callable[..., Any]:
    @functools.wraps(method)
    def tie_weights(self: Any, **arguments: Any) -> Any:
        return method(self, **{name: value for name, value in arguments.items() if name in taken})

    return tie_weights


def _fused(kind: type) -> str:
    """A model that says by the earlier name that its attention can be a fused one."""
    if not vars(kind).get("_supports_flash_attn_2") or "_supports_flash_attn" in vars(kind):
        return ""
    kind._supports_flash_attn = True  # type: ignore[attr-defined]
    return f"{kind.__name__}._supports_flash_attn_2: now called _supports_flash_attn"


def _scaled(kind: type) -> str:
    """A config keeps the scaling of rotary positions as it is stated: None, or without what the library puts into it.
    Its code may ask whether there is one, and for a `type`."""
    plain = getattr(kind, "rope_scaling", None)
    if not isinstance(plain, property) or plain.fset is None or plain.fget is None:
        return ""
    get, put = plain.fget, plain.fset

    def stated(self: Any) -> Any:
        return vars(self)["rope_scaling"] if "rope_scaling" in vars(self) else get(self)

    def state(self: Any, value: Any) -> None:
        vars(self)["rope_scaling"] = value
        put(self, copy.deepcopy(value))

    kind.rope_scaling = property(stated, state)  # type: ignore[attr-defined]
    return f"{kind.__name__}.rope_scaling: as the config states it; since version 5 it is rope_parameters"
