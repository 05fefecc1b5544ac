"""What routed experts look like: their structure, whatever they are called."""

from __future__ import annotations

import inspect

from torch import nn

_LEAST = 2


def packed(module: nn.Module) -> int:
    """How many experts a module holds; 0: it is no module of packed experts."""
    own = [each for each in module._parameters.values() if each is not None]
    deep = [each for each in own if each.dim() > _LEAST]
    if not deep or min(deep[0].shape) < _LEAST or any(each.shape[0] != deep[0].shape[0] for each in own):
        return 0
    asked = [each for each in inspect.signature(module.forward).parameters.values()
             if each.kind is each.POSITIONAL_OR_KEYWORD]
    return deep[0].shape[0] if len(asked) > _LEAST else 0


def alike(modules: nn.ModuleList) -> bool:
    """Whether all have the same parameters, linear layers that lead back to the width that they come from."""
    if len(modules) < _LEAST or len({type(one) for one in modules}) > 1:
        return False
    shapes = {tuple((name, tuple(each.shape)) for name, each in one.named_parameters()) for one in modules}
    linear = [each for each in modules[0].modules() if isinstance(each, nn.Linear)]
    return len(shapes) == 1 and len(linear) >= _LEAST and linear[0].in_features in {
        each.out_features for each in linear}
