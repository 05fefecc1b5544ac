"""Tensors as the library's class for a config names them in files: for a twin of a release that has only a config.

The class is built on the meta device with the twin's config, and the library's own way back from parameters to names in
files is asked. Quantised are the matrices that the config's statement makes so. Needs torch and transformers.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from dayzero.data.vocabulary import spellings, vocabulary
from dayzero.errors import NotPossible

from .modules import Kind, Module, form_of
from .storage import WEIGHTS, Part, Storage

DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32",
          "bool": "BOOL"}  # fmt: skip
_LEFT_OUT = ("quantization_config", "auto_map", "_name_or_path")
_FOLDED = ("_blocks", "_scales")
_GROUP = 32
"""Values that share a scale in the MX format."""
Named = tuple[str, tuple[int, ...], str]
"""(name, shape, dtype)"""


def library_tensors(config: Mapping[str, Any]) -> tuple[str, list[Named]]:
    """(class, tensors in files). Raises NotPossible without the library or a class for the config."""
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise NotPossible(f"{package} is not installed", "pip install 'dayzero[torch]'")
    from dayzero.runtime.library import LIBRARY_ERRORS, cause

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _built(_plain(config))
        except LIBRARY_ERRORS as error:
            raise NotPossible(f"the library cannot build it: {cause(error)}", "") from None


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without quantisation, code of its own and choices of kernels."""
    return {key: _plain(value) if isinstance(value, dict) and key.endswith("_config") else value
            for key, value in config.items() if key not in _LEFT_OUT and not key.endswith("attn_implementation")}


def unstated_towers(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Tables of towers that the model which the config names has and the config does not state: defaults of the
    library's class. Empty without the library or a class."""
    made = _config(config)
    if made is None or _named_class(made, config) is None:
        return {}
    whole, usual = made.to_dict(), _usual_keys()
    missing = [key for key in vocabulary().config.towers if key not in config and isinstance(whole.get(key), dict)]
    return {table: {key: value for key, value in whole[table].items() if key not in usual} for table in missing}


def _usual_keys() -> set[str]:
    """Keys of every config of the library, which say nothing of a model's sizes."""
    from transformers import PretrainedConfig

    return {*PretrainedConfig().to_dict()} - {"model_type"}


def _config(config: Mapping[str, Any]) -> Any:
    """The library's config; None without the library, a class, or where it cannot be made."""
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
        return None
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from dayzero.runtime.library import LIBRARY_ERRORS

    model_type = str(config.get("model_type", ""))
    if model_type not in CONFIG_MAPPING:
        return None
    try:
        return CONFIG_MAPPING[model_type].from_dict(_plain(config))
    except LIBRARY_ERRORS:
        return None


def unstated_numbers(config: Mapping[str, Any]) -> dict[str, int]:
    """Integers of the library's config that the release's does not state, by dotted key: defaults of its class, in
    tables that describe towers and beside them. Empty without the library or a class."""
    made = _config(config)
    if made is None:
        return {}
    whole = made.to_dict()
    tables = [key for key in vocabulary().config.towers if isinstance(whole.get(key), dict)]
    found = {key: value for key, value in whole.items() if key not in config}
    for table in tables:
        own = config.get(table, whole[table])
        found |= {f"{table}.{key}": value for key, value in whole[table].items() if key not in own}
    return {key: value for key, value in found.items() if type(value) is int}


def _built(config: dict[str, Any]) -> tuple[str, list[Named]]:
    import torch
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = str(config.get("model_type", ""))
    if model_type not in CONFIG_MAPPING:
        raise NotPossible(f"the library knows no model type {model_type!r}", "")
    config_class = CONFIG_MAPPING[model_type]
    made = config_class.from_dict(config)
    build = _builder(made, config)
    if build is None:
        raise NotPossible(f"the library has no text model of type {model_type!r}", "")
    stated = made.get_text_config().dtype or getattr(made, "dtype", None)
    with torch.device("meta"):
        model = build(made, dtype=stated if isinstance(stated, torch.dtype) else torch.bfloat16)
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    state = {name: value for name, value in model.state_dict().items() if name not in tied}
    kept = _decoder_names(model, revert_weight_conversion(model, state))
    return type(model).__name__, [(name, tuple(value.shape), DTYPES[str(value.dtype).removeprefix("torch.")])
                                  for name, value in kept.items()]


def _builder(made: Any, config: Mapping[str, Any]) -> Any:
    """What makes the model: the class that the config names, if the library has it for this config, else the usual one
    for its type; None: there is none."""
    from dayzero.runtime.library import auto_class

    named = _named_class(made, config)
    if named is not None:
        return named._from_config
    auto = auto_class(type(made))
    return auto and auto.from_config


def _named_class(made: Any, config: Mapping[str, Any]) -> Any:
    """The library's class that the config names, if it is one for this config."""
    import transformers

    found = (getattr(transformers, str(name), None) for name in config.get("architectures") or ())
    return next((each for each in found if getattr(each, "config_class", None) is type(made)), None)


def _decoder_names(model: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Rules for the names of a tower can hit the decoder's on the way back. Where the name that the code itself has for
    its layers is understood as well, it is taken."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    mapping, state = get_model_conversion_mapping(model), model.state_dict()
    renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
    converters = [one for one in mapping if isinstance(one, WeightConverter)]

    def target(name: str) -> str:
        return str(rename_source_key(name, renamings, converters, model.base_model_prefix, state)[0])

    words = {name.split(".0.")[0].rpartition(".")[2] for name in state if ".0." in name and "layers.0." in name}
    made = {}
    for name, value in named.items():
        other = name.replace(".blocks.", ".layers.", 1) if "layers" in words else name
        decoder = other != name and not name.startswith(("vision", "visual", "model.v"))
        made[other if decoder and target(other) == target(name) else name] = value
    return made


def library_modules(tensors: Iterable[Named], like: Iterable[Module], numbers: Mapping[str, int]) -> list[Module]:
    """Modules of those tensors, quantised like the estimate's module of the same role in the same layer."""
    kinds: dict[int, dict[int, Kind]] = {}
    for module in like:
        if module.kind.storage is not None:
            kinds.setdefault(_layer(module.name), {})[id(module.kind)] = module.kind
    turned = _turned(tensors := list(tensors), numbers)
    modules: dict[str, dict[str, Named]] = {}
    for tensor in tensors:
        name = form_of(tensor[0])[1]
        modules.setdefault(name, {})[tensor[0][len(name):]] = tensor
    return [_module(name, parts, [*kinds.get(_layer(name), {}).values()], turned) for name, parts in modules.items()]


def _layer(name: str) -> int:
    """The first number in a name; -1: there is none."""
    return next((int(word) for word in name.split(".") if word.isdigit()), -1)


def _turned(tensors: list[Named], numbers: Mapping[str, int]) -> bool:
    """Whether stacked experts are [experts, in, out]."""
    wide = next((shape for name, shape, _ in tensors if len(shape) == 3 and "experts" in name and "up" in name), None)
    inner = numbers.get("expert_input", 0)
    return wide is not None and wide[1] == inner and wide[2] != inner


def _module(name: str, parts: Mapping[str, Named], kinds: list[Kind], turned: bool) -> Module:
    end = next((end for end, tensor in parts.items() if form_of(tensor[0])[0] in WEIGHTS), None)
    kind = _kind_like(name, kinds) if end is not None else None
    role = kind.role if kind else "experts.other" if "experts" in name.split(".") else "other"
    others = {other: tensor for other, tensor in parts.items() if other != end}
    stored: Storage | None = None
    axes: tuple[int, ...] = ()
    if end is not None:
        _, shape, dtype = parts[end]
        axes, stored = shape, Storage({end: Part("weight", dtype, shape)}, end, dtype.lower(), 1)
        quantised = kind.storage if kind and kind.storage and len(kind.storage.parts) > 1 else None
        if quantised is not None and len(shape) == 2:
            stored = quantised
        elif quantised is not None and len(shape) == 3 and quantised.scheme == "mxfp4":
            stored, end = _folded(), ""
            axes = (shape[0], shape[2], shape[1]) if turned else shape
    made = dict(stored.parts if stored else {})
    made |= {one: Part("bias", dtype, shape) for one, (_, shape, dtype) in others.items()}
    return Module(Kind(name, role, made, stored, axes, {one: tensor[1] for one, tensor in others.items()},
                       turned and stored is not None and not stored.folded), name)


def _folded() -> Storage:
    """Stacked experts in the MX format: [experts, out, groups, bytes] and their scales."""
    blocks, scales = Part("packed", "U8", (1, 1, 1, _GROUP // 2)), Part("scale", "U8", (1, 1, 1))
    return Storage(dict(zip(_FOLDED, (blocks, scales), strict=True)), _FOLDED[0], "mxfp4", 2, folded=True,
                   block=(1, 1, _GROUP))


def _kind_like(name: str, kinds: list[Kind]) -> Kind | None:
    """The estimate's kind that plays the role of a module: one of that name first."""
    words = name.split(".")
    alike = [kind for kind in kinds if _place(kind.pattern.split(".")) == _place(words)]
    named = next((kind for kind in alike if kind.pattern.rpartition(".")[2] == words[-1]), None)
    return named or next((kind for kind in alike if _plays(kind.role, words[-1])), None)


def _place(words: list[str]) -> tuple[bool, ...]:
    """Where a module stands, as far as it makes a difference to what it is: in routed or shared experts, in an indexer
    and so on. A feed-forward block is told by having no other place."""
    tower = vocabulary().scopes["vision"] + vocabulary().scopes["projector"]
    return (any("shared_expert" in word for word in words), any(word in tower for word in words),
            *(place in words for place in ("experts", "indexer", "compressor")))


def _plays(role: str, leaf: str) -> bool:
    place = role.split(".")[0]
    roles = [role, f"{place}.gate_up"] if place == "experts" else [role]
    return place not in ("indexer", "compressor", "vision", "projector") and any(
        fnmatchcase(leaf, word) for one in roles for word in spellings(one))
