"""How a model's parameters are cut for a number of ranks, derived from its own code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch
from torch import nn

from dayzero.runtime.building import decoder_layers
from dayzero.runtime.library import LIBRARY_ERRORS
from dayzero.schema import Layout

from .experts import Experts, find
from .observe import Kind, fresh, kinds, pattern
from .trial import Along, Cuts, Subject, cuts, run_whole

TP, WIDTH = "tp", "width"
"""Groups of ranks: those of a replica's stage; those among them that share the width of the same experts."""


@dataclass(frozen=True)
class Rule:
    """How a parameter is cut, apart from whole experts."""

    along: Along
    group: str
    """TP or WIDTH."""
    kind: str
    """`column`, `row`, `vocabulary`, `expert width` or `with its parts` (a norm, a gate of each head)."""


@dataclass
class Rules:
    """Of one model, for a number of ranks."""

    cut: dict[str, Rule] = field(default_factory=dict)
    """By the name of a parameter."""
    whole: dict[str, str] = field(default_factory=dict)
    """Name of a parameter that every rank holds -> why."""
    experts: tuple[Experts, ...] = ()
    """Those whose names are below the decoder's layers."""
    vocabulary: str = ""
    """Name of the head, if what it gives is put together."""

    @property
    def digest(self) -> int:
        """By which ranks see that theirs are the same."""
        return crc32(repr((sorted(self.cut.items()), self.experts, self.vocabulary)).encode())

    def of(self, name: str) -> Experts | None:
        """The routed experts that a parameter belongs to."""
        return next((each for each in self.experts if each.holds(name)), None)


def derive(model: Any, layout: Layout) -> Rules:
    """Rules for a model whose parameters have no data. Raises NotPossible for a model without a list of layers."""
    layers = decoder_layers(model)
    prefix = next(name for name, module in model.named_modules() if module is layers)
    made = Rules()
    reason = "one rank"
    if layout.tp > 1:
        reason = "not in a layer of the decoder"
        try:
            found = kinds(model)
        except LIBRARY_ERRORS as error:
            found, reason = [], f"the code does not run on a few tokens: {type(error).__name__}: {str(error)[:120]}"
        for kind in found:
            _of_kind(made, kind, layers, prefix, layout)
        _vocabulary(made, model, layout.tp)
    made.experts = tuple(each for number, layer in enumerate(layers) for each in find(layer, f"{prefix}.{number}"))
    for name, _ in model.named_parameters(remove_duplicate=False):
        if name not in made.cut:
            made.whole.setdefault(name, reason)
    return made


def _of_kind(rules: Rules, kind: Kind, layers: nn.ModuleList, prefix: str, layout: Layout) -> None:
    """The same for all layers that are alike."""
    found = find(kind.layer, "")
    calls: dict[str, tuple[Any, ...]] = {}
    chosen, why = _layer(kind, found, layout, calls)
    for each in found:
        if each.packed and layout.expert_tp > 1 and each.name in calls:
            own, reasons = _packed(kind.layer.get_submodule(each.name), calls[each.name], layout.expert_tp)
            chosen |= {f"{each.name}.{name}": along for name, along in own.items()}
            why |= {f"{each.name}.{name}": reason for name, reason in reasons.items()}
    for number in kind.numbers:
        for name, parameter in layers[number].named_parameters(remove_duplicate=False):
            along, path = chosen.get(pattern(name)), f"{prefix}.{number}.{name}"
            if along is None:
                rules.whole[path] = why.get(pattern(name), "")
            else:
                routed = any(each.holds(name) for each in found)
                rules.cut[path] = Rule(along, WIDTH if routed else TP,
                                       "expert width" if routed else _kind(parameter, along))


def _kind(parameter: nn.Parameter, along: Along) -> str:
    if parameter.dim() != 2:
        return "with its parts"
    return "row" if along.dim else "column"


def _layer(kind: Kind, found: list[Experts], layout: Layout, calls: dict[str, tuple[Any, ...]]
           ) -> tuple[Cuts, dict[str, str]]:
    def routed(name: str) -> Experts | None:
        return next((each for each in found if name.startswith(f"{pattern(each.name)}.")), None)

    def ranks(name: str) -> int:
        own = routed(name)
        return layout.tp if own is None else 1 if own.packed else layout.expert_tp

    def scope(name: str) -> str:
        own = routed(name)
        return own.name if own else ""

    subject = Subject(kind.layer, lambda: kind.layer(*fresh(kind.args), **fresh(kind.kwargs)), ranks,
                      lambda _, parameter: (0,) if parameter.dim() == 2 else tuple(range(parameter.dim() - 1))
                      if parameter.dim() > 1 else (), scope)
    with _passed(kind.layer, [each.name for each in found if each.packed], calls):
        run_whole(subject)  # so that experts are seen with what is whole
        return cuts(subject)


@contextmanager
def _passed(layer: nn.Module, names: list[str], calls: dict[str, tuple[Any, ...]]) -> Iterator[None]:
    """Packed experts are not run here: they give zeros, and what they are called with at first is kept."""
    def stand_in(name: str, *args: Any, **kwargs: Any) -> torch.Tensor:
        calls.setdefault(name, (args, kwargs))
        given = [*args, *kwargs.values()]
        return torch.zeros_like(given[0])

    for name in names:
        layer.get_submodule(name).forward = functools.partial(stand_in, name)
    try:
        yield
    finally:
        for name in names:
            del layer.get_submodule(name).forward


def _packed(module: nn.Module, call: tuple[Any, ...], ranks: int) -> tuple[Cuts, dict[str, str]]:
    """The width of packed experts, by the code that runs one after the other."""
    args, kwargs = call
    forward: Callable[..., Any] = type(module).forward
    forward = getattr(forward, "__wrapped__", forward)
    subject = Subject(module, lambda: forward(module, *fresh(args), **fresh(kwargs)), lambda _: ranks,
                      lambda _, parameter: tuple(range(1, parameter.dim())) if parameter.dim() > 2 else ())
    return cuts(subject)


def _vocabulary(rules: Rules, model: Any, ranks: int) -> None:
    """Embedding and head are cut by their rows."""
    names = {id(module): name for name, module in model.named_modules()}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    for module, accepted in ((embedding, nn.Embedding), (head, nn.Linear)):
        if module is None or id(module) not in names or not isinstance(module, accepted):
            continue
        rows, name = module.weight.shape[0], names[id(module)]
        if rows % ranks:
            rules.whole[f"{name}.weight"] = f"{rows} is not a multiple of {ranks}"
            continue
        for leaf, _ in module.named_parameters(recurse=False):
            rules.cut[f"{name}.{leaf}"] = Rule(Along(0, (rows,)), TP, "vocabulary")
        if module is head:
            rules.vocabulary = name
