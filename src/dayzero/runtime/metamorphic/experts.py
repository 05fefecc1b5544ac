"""Relations of routed experts: their numbers mean nothing, and the factor on their output is applied once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from dayzero.runtime.building import decoder_layers
from dayzero.runtime.sharding.experts import Experts, find
from dayzero.schema.relation import Held

from .sequences import LENGTH
from .subject import FLOOR, Subject, distance, skipped

PERMUTED, FACTORS = "experts permuted with their rows of the router", "the factor on the routed experts' output"


def experts(subject: Subject, factors: Sequence[str], groups: int) -> Iterator[Held]:
    """Of all layers at once; skipped for a model without experts."""
    found = _all(subject.model)
    if not found:
        yield skipped(PERMUTED, "the model has no routed experts")
        return
    yield _permuted(subject, found, groups)
    yield from _factors(subject, found, factors)


def _all(model: nn.Module) -> list[Experts]:
    """Of every decoder layer."""
    names = {id(module): name for name, module in model.named_modules()}
    return [each for layer in decoder_layers(model) for each in find(layer, names[id(layer)])]


def _permuted(subject: Subject, found: list[Experts], groups: int) -> Held:
    """Within groups, and groups as a whole: routers that choose among groups first know which experts are together."""
    ids = subject.tokens(1, LENGTH)
    before = subject.logits(ids)
    with ExitStack() as stack:
        done = [stack.enter_context(_renumbered(subject.model, each, _order(each.count, groups))) for each in found]
        after = subject.logits(ids)
    if not all(done):
        return skipped(PERMUTED, f"no router with a row for each expert is beside {found[done.index(False)].name}")
    return subject.held(PERMUTED, after, before, ids, f"{len(found)} layers, {groups} groups")


def _order(count: int, groups: int) -> torch.Tensor:
    """Reversed groups of reversed experts: every number changes, and who is with whom does not."""
    if count % groups:
        groups = 1
    return torch.arange(count).reshape(groups, -1).flip(0).flip(1).flatten()


@contextmanager
def _renumbered(model: nn.Module, each: Experts, order: torch.Tensor) -> Iterator[bool]:
    """The experts and all rows for them in the modules beside, in another order; whether there are such rows."""
    module, beside = model.get_submodule(each.name), _beside(model, each)
    back = torch.argsort(order)
    rows = [tensor for tensor in beside if tensor.shape[0] == each.count]
    try:
        _turn(module, each, rows, order)
        yield bool(rows)
    finally:
        _turn(module, each, rows, back)


def _beside(model: nn.Module, each: Experts) -> list[torch.Tensor]:
    """Parameters and buffers of the block that the experts are in, without theirs."""
    block = model.get_submodule(each.name.rpartition(".")[0])
    inside = each.name.rpartition(".")[2]
    named = [*block.named_parameters(), *block.named_buffers()]
    return [tensor for name, tensor in named if not name.startswith(f"{inside}.") and tensor.dim()]


def _turn(module: nn.Module, each: Experts, rows: list[torch.Tensor], order: torch.Tensor) -> None:
    with torch.no_grad():
        for tensor in [*rows, *(module.parameters(recurse=False) if each.packed else ())]:
            tensor.copy_(tensor[order.to(tensor.device)])
    if not each.packed:
        assert isinstance(module, nn.ModuleList)
        own = list(module)
        for number, old in enumerate(order.tolist()):
            module[number] = own[old]


def _factors(subject: Subject, found: list[Experts], keys: Sequence[str]) -> Iterator[Held]:
    """What a block of experts gives is linear in the factor: f(2s) - 2 f(s) + f(0) = 0, and f(2s) is not f(s)."""
    block = subject.model.get_submodule(found[0].name.rpartition(".")[0])
    for key in keys:
        holders = [each for each in subject.model.modules() if isinstance(vars(each).get(key), float)]
        configs = list({id(each): each for module in subject.model.modules()
                        if isinstance(getattr(each := getattr(module, "config", None), key, None), float)}.values())
        if holders or configs:
            yield _linear(subject, block, key, [*holders, *configs])


def _linear(subject: Subject, block: nn.Module, key: str, holders: list[Any]) -> Held:
    ids = subject.tokens(1, LENGTH)
    stated = float(getattr(holders[0], key))
    given = {times: _output(subject, block, ids, key, holders, stated * times) for times in (0.0, 1.0, 2.0)}
    twice, once, never = given[2.0], given[1.0], given[0.0]
    effect = distance(twice, once)
    if effect <= FLOOR * subject.roundoff:
        return Held(name=f"{FACTORS} ({key}) doubled", observed=1.0, tolerance=FLOOR * subject.roundoff,
                    source="a doubled factor has to double it", detail="doubling it changes nothing: it is not applied")
    size = float((once - never).double().norm()) or 1.0
    off = float((twice - 2 * once + never).double().norm()) / size
    tolerance = FLOOR * subject.roundoff * max(1.0, float(once.double().norm()) / size)
    return Held(name=f"{FACTORS} ({key}) doubled", observed=off, tolerance=tolerance,
                source=f"the output is linear in it, within {FLOOR:g} roundoffs of {subject.dtype}",
                detail=f"doubled, it changes the block's output by {effect:.3g}")


def _output(subject: Subject, block: nn.Module, ids: torch.Tensor, key: str, holders: list[Any],
            value: float) -> torch.Tensor:
    """What the first block of experts gives with another factor in all of them; its input does not depend on it."""
    seen: list[torch.Tensor] = []

    def take(_module: Any, _args: Any, output: Any) -> None:
        seen.append((output if isinstance(output, torch.Tensor) else output[0]).detach().float().cpu())

    before = [getattr(each, key) for each in holders]
    handle = block.register_forward_hook(take)
    try:
        for each in holders:
            setattr(each, key, value)
        subject.logits(ids)
    finally:
        handle.remove()
        for each, old in zip(holders, before, strict=True):
            setattr(each, key, old)
    return seen[0]
