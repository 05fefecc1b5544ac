"""Builds a release's model without weights, on the meta device: transformers' own class for it, or the class that the
release itself brings along.

Code of a release is executed only where that is asked for, which is in a confined process. Then it goes before the
library's class of the same model_type: it is what was released. Needs torch and transformers.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dayzero.errors import NotPossible
from dayzero.runtime import environment, own_code
from dayzero.runtime.building.config import architecture, stated
from dayzero.runtime.building.constructing import constructing
from dayzero.runtime.library import AUTO_CLASSES, LIBRARY_ERRORS, auto_class, cause, drop_empty_cache
from dayzero.runtime.meta import meta_autocast, without_values
from dayzero.runtime.older import keyword, stated_dtype
from dayzero.schema import Release
from dayzero.schema.graph import OWN

from .sizes import too_deep

TOLERANCE = 1e-3
"""Share by which declared parameters may differ from those of the files before it is told."""


class Built(NamedTuple):
    """A model on the meta device."""

    model: torch.nn.Module
    """In evaluation mode; its parameters have shapes and no data."""
    source: str
    """Library, version, class, and what differs from the release."""
    supplied: tuple[str, ...] = ()
    """Names that the release's code uses and the installed library lacks, and what was given for them."""


@contextlib.contextmanager
def quiet(*, own: bool = False) -> Iterator[None]:
    """No network, no progress bars and no warnings of the libraries while it lasts, and no autocast on the meta device,
    which has none; for a release's `own` code no other accelerator either. No empty folder of theirs is left."""
    from dayzero.runtime.own_code.devices import only_meta

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import huggingface_hub.constants as hub
        from transformers.utils import logging

        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        offline, variable = hub.HF_HUB_OFFLINE, os.environ.get("HF_HUB_OFFLINE")
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        hub.HF_HUB_OFFLINE, os.environ["HF_HUB_OFFLINE"] = True, "1"
        try:
            with meta_autocast(), only_meta() if own else contextlib.nullcontext():
                yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
            hub.HF_HUB_OFFLINE = offline
            os.environ.pop("HF_HUB_OFFLINE")
            if variable is not None:
                os.environ["HF_HUB_OFFLINE"] = variable
            drop_empty_cache()


def build(release: Release, *, own: bool = False, towers: bool = False) -> Built:
    """The model of a release; `own`: of its own code, where it brings the files that its auto_map names; `towers`: with
    towers, where the library also has a class without them.

    Raises NotPossible when the library has no class for it, or when it cannot be built; ReleaseError when it has too
    many layers for that.
    """
    too_deep(release)
    named = own_code.entries(release) if own else None
    return _of_release(release, named) if named else _of_library(release, towers=towers)


def _of_library(release: Release, *, towers: bool = False) -> Built:
    import transformers

    config_class, inferred = _config_class(release)
    values = architecture(release.config)
    if inferred:
        values.pop("model_type", None)
    auto = _auto_class(config_class, release, towers=towers)
    try:
        config = config_class.from_dict(values)
        with constructing():
            model = auto.from_config(config, **keyword(_dtype(config, release)))
    except LIBRARY_ERRORS as error:
        raise NotPossible(
            f"transformers {transformers.__version__} cannot build {release.name}: {cause(error)}",
            "a newer transformers may know this config") from error
    model.eval()
    return Built(model, _source(release, model, inferred))


def _of_release(release: Release, named: own_code.Entries) -> Built:
    """Runs code of the release."""
    import transformers

    loaded = own_code.load(release, named)
    config_class = loaded.config or _config_class(release)[0]
    try:
        config = stated(config_class, architecture(release.config))
        model = _own_model(loaded.model, config, release)
    except LIBRARY_ERRORS as error:
        where = own_code.place(error, Path(release.root or ""))
        raise NotPossible(f"the code of {release.name} cannot build its model with transformers "
                          f"{transformers.__version__}: {cause(error)} ({where})",
                          "trace it with the version of transformers that the release declares") from error
    model.eval()
    source = f"{OWN} {named.model}, on transformers {transformers.__version__}"
    return Built(model, "; ".join([source, *_notes(release, model)]), loaded.supplied)


def _own_model(model_class: Any, config: Any, release: Release) -> Any:
    """On the meta device; code that asks for values while it is constructed is given them for all but parameters."""
    from dayzero.runtime.own_code.devices import staying

    build = functools.partial(model_class._from_config, **keyword(_dtype(config, release)))
    try:
        with constructing():
            return build(copy.deepcopy(config))
    except LIBRARY_ERRORS as error:
        try:
            with constructing(values=True), staying():
                model = build(config)
        except LIBRARY_ERRORS:
            raise error from None
    return without_values(model)


def parameters(model: torch.nn.Module) -> int:
    """Parameters that the code declares, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def language_parameters(model: Any) -> int:
    """Parameters of the language model and its head, without towers and projectors; all where the config has no part
    for it, or the code does not say which one it is."""
    try:
        if model.config.get_text_config() is model.config:
            return parameters(model)
        parts = [model.get_decoder(), model.get_output_embeddings()]
    except LIBRARY_ERRORS:
        return parameters(model)
    own = {id(each): each.numel() for part in parts if part is not None for each in part.parameters()}
    return sum(own.values())


def _config_class(release: Release) -> tuple[Any, bool]:
    """The library's config class, and whether it was found by the architecture's name instead of the model_type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = str(release.config.get("model_type", ""))
    if model_type in CONFIG_MAPPING:
        return CONFIG_MAPPING[model_type], False
    import transformers

    for name in release.model.architectures:
        config_class = getattr(getattr(transformers, name, None), "config_class", None)
        if config_class is not None:
            return config_class, True
    here, away, foreign = own_code.entries(release), own_code.named(release), own_code.foreign(release)
    raise NotPossible(
        f"transformers {transformers.__version__} has no class for model_type {model_type!r}"
        + ("; the release brings its own code, which is not executed" if here else
           f"; the code that its auto_map names is another repository's: {foreign}" if foreign else
           f"; the code that its auto_map names ({away}) is not among its files" if away else
           "; its code is not named by an auto_map" if any(file.role == "code" for file in release.files) else ""),
        "--trust-remote-code runs it, without network and confined" if here
        else "put its files into the folder and name them without the repository" if foreign
        else "put that repository's files into the folder" if away
        else "trace it with a transformers that supports it natively")


def _auto_class(config_class: Any, release: Release, *, towers: bool = False) -> Any:
    import transformers

    auto = auto_class(config_class, towers=towers)
    if auto is None:
        raise NotPossible(
            f"transformers {transformers.__version__} has no generating model for {release.model.model_type!r}",
            f"dayzero traces what {' or '.join(AUTO_CLASSES)} builds")
    return auto


def _dtype(config: Any, release: Release) -> torch.dtype:
    """The config's dtype, else that of most weights, else bf16 (in which quantised releases compute)."""
    if stated := stated_dtype(config):
        return stated
    names = {"f32": torch.float32, "f16": torch.float16}
    return names.get(release.model.dtype, torch.bfloat16)


def _source(release: Release, model: torch.nn.Module, inferred: bool) -> str:
    import transformers

    name, declared, stored = type(model).__name__, parameters(model), release.model.parameters
    if inferred and _differs(declared, stored):
        raise NotPossible(
            f"the release names {name}, but that class declares {declared:,} parameters, {_stored(release)}",
            "trace it with a transformers that supports its model_type")
    notes = [f"transformers {transformers.__version__} {name}"]
    stated = release.model.architectures
    if inferred:
        notes.append(f"chosen by the name of the architecture (model_type {release.model.model_type!r} is unknown)")
    elif stated and name not in stated:
        notes.append(f"the release names {', '.join(stated)}")
    return "; ".join([*notes, *_notes(release, model)])


def _notes(release: Release, model: torch.nn.Module) -> Iterator[str]:
    """What differs from the release."""
    declared, stored = parameters(model), release.model.parameters
    if _quantised(release.config):
        yield "quantisation left out: the unquantised architecture was traced"
    if (language := language_parameters(model)) != declared:
        yield f"{language:,} of its {declared:,} parameters are the language model's"
    if _differs(declared, stored):
        yield f"declares {declared:,} parameters, {_stored(release)}"
    if other := environment.note(release.config):
        yield other


def _differs(declared: int, stored: int) -> bool:
    return stored > 0 and abs(declared - stored) > TOLERANCE * stored


def _stored(release: Release) -> str:
    """How many parameters the release has, and whence that is known: without tensors of files from the config alone."""
    number = f"{release.model.parameters:,}"
    return f"the files hold {number}" if release.tensors.files else f"{number} are estimated from the config"


def _quantised(config: dict[str, Any]) -> bool:
    return bool(config.get("quantization_config")) or any(
        _quantised(value) for value in config.values() if isinstance(value, dict))
