"""Which tensors of the files make which tensor of the model: by the library's own mapping for the model's classes, for
other code by name. Needs torch; of transformers only what the model was made with.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from dayzero.errors import ReleaseError
from dayzero.runtime.library import LIBRARY_ERRORS, cause

Tensors = dict[str, Any]


class Made(NamedTuple):
    """How one or several tensors of the model are made."""

    first: str
    """Name that the library gives the conversion."""
    converter: Any
    """The library's; None: the one source as it is."""
    sources: dict[str, list[str]]
    """The converter's pattern -> names in the files, in order."""


class Names:
    """For each name of the model's state its `Made`; which names are of no use, and which are missing."""

    def __init__(self, model: torch.nn.Module, names: Iterable[str], shapes: Callable[[str], Any]) -> None:
        self._model = model
        self.state: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
        self.made: dict[str, Made] = {}
        self.alias: dict[str, str] = {}
        """Tied tensor that is in no file -> the one that is."""
        unused: list[str] = []
        from transformers.core_model_loading import dot_natural_key

        transforms = _transforms(model)
        renamings = [each for each in transforms if not hasattr(each, "operations")]
        converters = [each for each in transforms if hasattr(each, "operations")]
        self._assign(sorted(names, key=dot_natural_key) if transforms else list(names), renamings, converters, unused)
        self._several(shapes)
        ignored = _patterns(model, "_keys_to_ignore_on_load_unexpected")
        self.unused = tuple(sorted(name for name in unused if not any(each.search(name) for each in ignored)))
        self.tied = _tied(model, self.state)
        for name, others in self.tied.items():
            source = next((other for other in others if other in self.made), None)
            if name not in self.made and source is not None:
                self.alias[name] = source
        self.made.update({name: self.made[source] for name, source in self.alias.items()})
        unneeded = _patterns(model, "_keys_to_ignore_on_load_missing")
        self.missing = tuple(name for name in self.state
                             if name not in self.made and not any(each.search(name) for each in unneeded))

    def _assign(self, names: list[str], renamings: list[Any], converters: list[Any], unused: list[str]) -> None:
        prefix = getattr(self._model, "base_model_prefix", "") or None
        owner = {pattern: each for each in converters for pattern in each.source_patterns}
        for name in names:
            renamed, pattern = _renamed(name, renamings, converters, prefix, self.state)
            if renamed not in self.state and name in self.state:
                renamed, pattern = name, None
            if renamed not in self.state:
                unused.append(name)
            elif pattern is None:
                self.made.setdefault(renamed, Made(renamed, None, {"": [name]}))
            else:
                made = self.made.setdefault(renamed, Made(renamed, owner[pattern], {}))
                made.sources.setdefault(pattern, []).append(name)

    def _several(self, shapes: Callable[[str], Any]) -> None:
        """Conversions of which more than one tensor comes."""
        for first, made in list(self.made.items()):
            patterns = getattr(made.converter, "target_patterns", ())
            if len(patterns) > 1 or any("*" in pattern for pattern in patterns):
                for name in self.convert(made, shapes):
                    if name in self.state:
                        self.made[name] = made
                if first not in self.convert(made, shapes):
                    del self.made[first]

    def tensor(self, name: str, tensor: Callable[[str], Any]) -> Any:
        """The tensor of the model, as `convert` makes it."""
        converted, key = self.convert(self.made[name], tensor), self.alias.get(name, name)
        if key not in converted:
            raise ReleaseError(f"{name} cannot be made of the tensors in the files: the conversion gives others",
                               "look for tensors of it that are missing or have other shapes")
        return converted[key]

    def convert(self, made: Made, tensor: Callable[[str], Any]) -> Tensors:
        """The library's conversion of what `tensor` gives for each name in the files. Raises ReleaseError when the
        library cannot do it, and what `tensor` and its values raise."""
        if made.converter is None:
            return {made.first: tensor(made.sources[""][0])}
        converter = copy.deepcopy(made.converter)
        for pattern, names in made.sources.items():
            for name in names:
                converter.add_tensor(made.first, name, pattern, tensor(name))
        try:
            with torch.no_grad():
                config = getattr(self._model, "config", None)
                converted = converter.convert(made.first, model=self._model, config=config)
        except LIBRARY_ERRORS as error:
            raise ReleaseError(f"{made.first} cannot be made of the tensors in the files: {cause(error)}",
                               "look for tensors of it that are missing or have other shapes") from None
        return {name: value[0] if isinstance(value, list) else value for name, value in converted.items()}


def _transforms(model: torch.nn.Module) -> list[Any]:
    """The library's renamings and conversions for the model's classes; none for other code."""
    from transformers import PreTrainedModel
    from transformers.conversion_mapping import get_model_conversion_mapping

    if not isinstance(model, PreTrainedModel):
        return []
    return list(get_model_conversion_mapping(model))


def _renamed(name: str, renamings: list[Any], converters: list[Any], prefix: str | None,
             state: Mapping[str, Any]) -> tuple[str, str | None]:
    from transformers.core_model_loading import rename_source_key

    renamed, pattern = rename_source_key(name, renamings, converters, prefix, state)
    if renamed not in state and name in state:
        renamed, pattern = rename_source_key(name, [], [], prefix, state)
    return renamed, pattern


def _tied(model: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> dict[str, list[str]]:
    """Name -> other names of the same tensor."""
    same: dict[int, list[str]] = {}
    for name, tensor in state.items():
        same.setdefault(id(tensor), []).append(name)
    tied = {name: [other for other in names if other != name] for names in same.values() if len(names) > 1
            for name in names}
    for name, other in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        tied.setdefault(name, []).append(other)
        tied.setdefault(other, []).append(name)
    return tied


def _patterns(model: torch.nn.Module, attribute: str) -> list[re.Pattern[str]]:
    return [re.compile(pattern) for pattern in getattr(model, attribute, None) or ()]

