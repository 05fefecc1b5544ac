"""A model of its first layers only, for a release of which only some layers' weights are here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from torch import nn

from dayzero.data.vocabulary import vocabulary
from dayzero.errors import ReleaseError
from dayzero.text import some

from .library import decoder_layers

_GET = "get the files that hold them"


def layers_there(model: Any, missing: Collection[str]) -> tuple[int, str]:
    """(how many layers from the first on are whole, what is said about the rest), of a whole model of which the named
    tensors are in no file. Nothing is said when all are there.

    Raises ReleaseError when the rest cannot be run as a model: a layer lacks some of its tensors or all of them and
    later ones are there, or something outside of the layers is missing.
    """
    layers = decoder_layers(model)
    prefix = next(name for name, module in model.named_modules() if module is layers)
    number = re.compile(rf"{re.escape(prefix)}\.(\d+)\.")
    lacking: dict[int, list[str]] = {}
    outside = []
    for name in missing:
        found = number.match(name)
        if found:
            lacking.setdefault(int(found[1]), []).append(name)
        else:
            outside.append(name)
    if outside:
        raise ReleaseError(f"the files do not hold {some(sorted(outside))}, without which no layer can be run", _GET)
    if not lacking:
        return len(layers), ""
    first = min(lacking)
    whole = [count for count in range(first, len(layers)) if count not in lacking]
    if first == 0 or whole:
        what = some(sorted(lacking[first]))
        beyond = f", but layer {whole[0]} is there" if whole else ""
        raise ReleaseError(f"layer {first} lacks {what}{beyond}: what is there is no model of the first layers", _GET)
    torn = _torn(layers, prefix, lacking)
    rest = f"; layer {torn} is there in part and left out" if torn is not None else ""
    return first, f"only layers 0-{first - 1} of {len(layers)} are here: this is NOT the released model{rest}"


def refuse_part(model: Any, missing: Collection[str]) -> None:
    """Raises ReleaseError where what is missing is whole layers at the end; otherwise there is more to be said."""
    try:
        count, _ = layers_there(model, missing)
    except ReleaseError:
        return
    raise ReleaseError(f"only layers 0-{count - 1} of {len(decoder_layers(model))} are here",
                       "get the others; these can be run as a model of their own with --stream --partial")


def _torn(layers: nn.ModuleList, prefix: str, lacking: dict[int, list[str]]) -> int | None:
    """The first layer of which some tensors are there."""
    for number, names in sorted(lacking.items()):
        own = {f"{prefix}.{number}.{name}" for name in layers[number].state_dict()}
        if own - set(names):
            return number
    return None


def shorten(model: Any, count: int) -> None:
    """Keep the first `count` layers, and let the model's code and configs know of no others."""
    layers = decoder_layers(model)
    before = len(layers)
    del layers[count:]
    words = {name.rpartition(".")[2] for name in vocabulary().config.spellings()["layers"]}
    for owner in _owners(model, layers):
        for name, value in list(vars(owner).items()):
            if name in words and value == before:
                vars(owner)[name] = count
            elif isinstance(value, list | tuple) and len(value) == before:
                vars(owner)[name] = value[:count]


def _owners(model: Any, layers: nn.ModuleList) -> Iterator[Any]:
    """The modules around the layers, and the configs that modules look at."""
    seen: set[int] = set()
    for module in model.modules():
        if any(child is layers for child in module.modules()) and module is not layers:
            yield module
        config: Any = getattr(module, "config", None)
        parts = [config, config.get_text_config()] if hasattr(config, "get_text_config") else [config]
        for part in parts:
            if part is not None and id(part) not in seen:
                seen.add(id(part))
                yield part
