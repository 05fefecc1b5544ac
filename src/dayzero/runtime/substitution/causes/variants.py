"""What a call of a torch function might have been instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional

Tensor = torch.Tensor


class Variant(NamedTuple):
    """Another result of a call."""

    name: str
    words: str
    compute: Callable[[], Any]


def variants(name: str, args: Any, kwargs: Any, output: Any) -> list[Variant]:
    """Of one call; none for what is not known to be confused with anything."""
    make = _MADE.get(name)
    found = make(args, kwargs, output) if make is not None else []
    if isinstance(output, Tensor) and output.is_floating_point() and output.dtype == torch.float32 and name in _ROUNDED:
        found.append(Variant(f"{name} rounded to bf16", f"rounds the result of {name} to bf16",
                             lambda: output.bfloat16().to(output.dtype)))
    return found


_ROUNDED = frozenset({"linear", "matmul", "softmax", "sigmoid", "mul", "add", "rsqrt", "mean", "topk", "exp", "cumsum",
                      "float", "gather"})


def _add(args: Any, kwargs: Any, output: Any) -> list[Variant]:
    one, other = _two(args)
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape:
            if one.numel() < other.numel():
                one, other = other, one
            return [Variant("addend dropped", "leaves out what is added", lambda: one.expand_as(output)),
                    Variant("addend subtracted", "subtracts what is to be added", lambda: one - other)]
        return [Variant("first addend dropped", "leaves out the first of two addends", lambda: other),
                Variant("second addend dropped", "leaves out the second of two addends", lambda: one),
                Variant("first addend doubled", "adds the first addend twice", lambda: output + one),
                Variant("second addend doubled", "adds the second addend twice", lambda: output + other),
                Variant("subtracted", "subtracts the second addend", lambda: one - other)]
    if isinstance(one, Tensor) and isinstance(other, (int, float)):
        return _with_number("add", one, float(other), lambda value: one + value)
    return []


def _with_number(name: str, one: Tensor, number: float, compute: Callable[[float], Tensor]) -> list[Variant]:
    if name == "add":
        values = {"dropped": 0.0, "ten times as large": number * 10, "a tenth": number / 10,
                  "a thousand times as large": number * 1000, "negated": -number}
    else:
        values = {"not applied": 1.0, "applied twice": number * number, "negated": -number}
        if number > 0:
            values |= {"of which the square root is taken": number ** 0.5, "inverted": 1 / number}
    return [Variant(f"{name} {number:.4g} {how}", f"has the constant {number:.6g} {how}",
                    partial(compute, value)) for how, value in values.items() if value != number]


def _mul(args: Any, kwargs: Any, output: Any) -> list[Variant]:
    one, other = _two(args)
    if isinstance(other, Tensor) and isinstance(one, (int, float)):
        one, other = other, one
    if isinstance(one, Tensor) and isinstance(other, (int, float)):
        return _with_number("mul", one, float(other), lambda value: one * value)
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return []
    if other.numel() == 1:
        return _with_number("mul", one, float(other), lambda value: one * value)
    found = [Variant("first factor dropped", "leaves out the first of two factors", lambda: other.expand_as(output)),
             Variant("second factor dropped", "leaves out the second of two factors", lambda: one.expand_as(output)),
             Variant("first factor twice", "multiplies by the first factor twice", lambda: output * one),
             Variant("second factor twice", "multiplies by the second factor twice", lambda: output * other)]
    return [*found, *_rotary(one, other)]


def _rotary(one: Tensor, table: Tensor) -> list[Variant]:
    """x * cos or x * sin with a table whose halves are the same: the other layout of its pairs."""
    size = table.shape[-1]
    if size % 2 or one.shape[-1] != size or one.dim() != 4 or table.dim() < 3 or not torch.equal(
            table[..., : size // 2], table[..., size // 2 :]):
        return []
    other = table[..., : size // 2].repeat_interleave(2, dim=-1)
    return [Variant("rotary pairs in the other layout",
                    "rotates interleaved pairs (neighbouring channels) instead of half-split ones",
                    lambda: _turned(one, table, other))]


def _turned(one: Tensor, table: Tensor, other: Tensor) -> Tensor:
    """What was rotated by halves already is put back and rotated by neighbours."""
    half = one.shape[-1] // 2
    if bool((table[..., :1, :] != 0).any()):  # cosines: 1 at position 0
        return one * other
    plain = torch.cat((one[..., half:], -one[..., :half]), dim=-1)
    pairs = torch.stack((-plain[..., 1::2], plain[..., 0::2]), dim=-1).flatten(-2)
    return pairs * other


def _sub(args: Any, kwargs: Any, output: Any) -> list[Variant]:
    one, other = _two(args)
    if not (isinstance(one, Tensor) or isinstance(other, Tensor)):
        return []
    found = [Variant("added", "adds what is to be subtracted", lambda: one + other)]
    if isinstance(one, Tensor) and one.shape == output.shape:
        found.append(Variant("subtrahend dropped", "leaves out what is subtracted", lambda: one))
    return found


def _div(args: Any, kwargs: Any, output: Any) -> list[Variant]:
    one, other = _two(args)
    if not isinstance(one, Tensor):
        return []
    return [Variant("not divided", "leaves a division out", lambda: one.expand_as(output)),
            Variant("divided twice", "divides twice", lambda: output / other)]


def _cat(args: Any, kwargs: Any, output: Any) -> list[Variant]:
    parts = args[0]
    axis = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    found = [Variant("parts in reverse order", "puts parts together in reverse order",
                     lambda: torch.cat(list(reversed(parts)), dim=axis))]
    if len(parts) == 2:
        one, other = parts
        if one.shape == other.shape:
            found.append(Variant("parts interleaved", "interleaves two parts",
                                 lambda: torch.stack((one, other), dim=-1).flatten(-2)))
            found.append(Variant("sign of the parts", "has the sign of two parts exchanged",
                                 lambda: torch.cat((-one, -other), dim=axis)))
        if other.shape[axis] == 1 and one.shape[axis] > 1:
            low = torch.finfo(other.dtype).min if other.is_floating_point() else 0
            found.append(Variant("last part without effect", "leaves out what is put behind the last (a sink)",
                                 lambda: torch.cat((one, torch.full_like(other, low)), dim=axis)))
            found.append(Variant("last part zero", "has zeros in what is put behind the last (a sink)",
                                 lambda: torch.cat((one, torch.zeros_like(other)), dim=axis)))
    return found


def _chunk(args: Any, kwargs: Any, output: Any) -> list[Variant]:
    one = args[0]
    axis = kwargs.get("dim", args[2] if len(args) > 2 else 0)
    if len(output) != 2:
        return [Variant("parts in reverse order", "takes parts in reverse order", lambda: tuple(reversed(output)))] if (
            len({each.shape for each in output}) == 1) else []
    if output[0].shape != output[1].shape:
        return []
    found = [Variant("halves exchanged", "takes the two halves for each other", lambda: (output[1], output[0]))]
    if axis in (-1, one.dim() - 1):
        found.append(Variant("interleaved instead of halves", "takes interleaved channels instead of two halves",
                             lambda: (one[..., 0::2], one[..., 1::2])))
    return found


def _getitem(args: Any, kwargs: Any, output: Any) -> list[Variant]:
    one, index = args[0], args[1]
    last = index[-1] if isinstance(index, tuple) and index else None
    if not (isinstance(one, Tensor) and isinstance(last, slice) and index[0] is Ellipsis and len(index) == 2):
        return []
    size = one.shape[-1]
    half = size // 2
    if size % 2 == 0 and last.step == 2:
        odd = (last.start or 0) % 2
        return [Variant("halves instead of interleaved", "takes two halves instead of interleaved channels",
                        lambda: one[..., half:] if odd else one[..., :half]),
                Variant("pairs exchanged", "takes the two of each pair for each other",
                        lambda: one[..., 0::2] if odd else one[..., 1::2])]
    if size % 2 == 0 and last.step in (None, 1) and output.shape[-1] == half:
        second = bool(last.start)
        return [Variant("interleaved instead of halves", "takes interleaved channels instead of two halves",
                        lambda: one[..., 1::2] if second else one[..., 0::2]),
                Variant("halves exchanged", "takes the two halves for each other",
                        lambda: one[..., :half] if second else one[..., half:])]
    return []


def _reshape(args: Any, kwargs: Any, output: Any) -> list[Variant]:
    """Two neighbouring axes merged or one split: in the other order."""
    one = args[0]
    if one.dim() == output.dim() + 1:
        for axis in range(one.dim() - 1):
            merged = (*one.shape[:axis], one.shape[axis] * one.shape[axis + 1], *one.shape[axis + 2:])
            if merged == tuple(output.shape) and min(one.shape[axis:axis + 2]) > 1:
                return [Variant("merged axes in the other order", "merges two axes in the other order (key/value "
                                "heads tiled instead of each one repeated)", partial(_merged, one, axis, output.shape))]
    if one.dim() + 1 == output.dim():
        for axis in range(one.dim()):
            first, second = output.shape[axis], output.shape[axis + 1]
            if (*one.shape[:axis], first, second, *one.shape[axis + 1:]) == tuple(output.shape) and first > 1 < second:
                return [Variant("split axes in the other order", "splits an axis in the other order (channels of heads "
                                "interleaved)", partial(_split, one, axis, (second, first)))]
    return []


def _merged(one: Tensor, axis: int, shape: Any) -> Tensor:
    return one.transpose(axis, axis + 1).reshape(shape)


def _split(one: Tensor, axis: int, sizes: tuple[int, int]) -> Tensor:
    return one.reshape(*one.shape[:axis], *sizes, *one.shape[axis + 1:]).transpose(axis, axis + 1)


def _activation(args: Any, kwargs: Any, output: Any) -> list[Variant]:
    one = args[0]
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": functional.silu, "gelu": functional.gelu, "tanh-gelu": lambda each: functional.gelu(
            each, approximate="tanh"), "relu": functional.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
        "softplus": functional.softplus, "identity": lambda each: each}
    if one.dim() and one.shape[-1] > 1:  # of one channel it is one, whatever is given
        known["softmax"] = lambda each: each.softmax(-1)
    return [Variant(f"{name} instead", f"applies {name} instead", partial(compute, one))
            for name, compute in known.items() if one.is_floating_point()]


def _softmax(args: Any, kwargs: Any, output: Any) -> list[Variant]:
    one = args[0]
    return [Variant("sigmoid instead", "applies sigmoid instead of softmax", lambda: one.sigmoid()),
            Variant("no softmax", "leaves softmax out", lambda: one),
            Variant("softmax over another axis", "takes softmax over another axis", lambda: one.softmax(-2))]


def _dropped(words: str) -> Callable[[Any, Any, Any], list[Variant]]:
    def make(args: Any, kwargs: Any, output: Any) -> list[Variant]:
        one = args[0]
        if not isinstance(one, Tensor) or one.shape != getattr(output, "shape", None):
            return []
        return [Variant(f"{words} left out", f"leaves out {words}", lambda: one)]
    return make


def _normalised(args: Any, kwargs: Any, output: Any) -> list[Variant]:
    if not isinstance(output, Tensor):
        return []
    words = "takes one instead of a sum: nothing is normalised by it"
    return [Variant("not summed", words, lambda: torch.ones_like(output))]


def _scaled_dot(args: Any, kwargs: Any, output: Any) -> list[Variant]:
    """torch's attention where a model has no plain one."""
    size = args[0].shape[-1]
    scale = kwargs.get("scale") or size ** -0.5
    called = functional.scaled_dot_product_attention
    options = dict(kwargs)
    found = [Variant(f"softmax scale {how}", f"has the softmax scale {how}", partial(
        called, *args, **{**options, "scale": value})) for how, value in {
            "not applied": 1.0, "applied twice": scale * scale, "of which the square root is taken": scale ** 0.5,
            "inverted": 1 / scale}.items()]
    found.append(Variant("not causal", "lets tokens see what comes behind them", lambda: called(
        *args[:3], **{**options, "attn_mask": None, "is_causal": False})))
    return found


def _product(compute: Callable[..., Tensor]) -> Callable[[Any, Any, Any], list[Variant]]:
    def make(args: Any, kwargs: Any, output: Any) -> list[Variant]:
        plain = not kwargs and all(each is None or isinstance(each, Tensor) for each in args)
        if not plain or output.dtype != torch.float32:
            return []
        return [Variant("product in bf16", "computes a product in bf16", lambda: compute(
            *(each if each is None else each.bfloat16() for each in args)).to(output.dtype))]
    return make


def _two(args: Any) -> tuple[Any, Any]:
    return (args[0], args[1]) if len(args) > 1 else (args[0] if args else None, None)


_MADE: dict[str, Callable[[Any, Any, Any], list[Variant]]] = {
    "add": _add, "mul": _mul, "multiply": _mul, "sub": _sub, "div": _div, "cat": _cat, "concat": _cat, "chunk": _chunk,
    "split": _chunk, "getitem": _getitem, "reshape": _reshape, "view": _reshape, "silu": _activation,
    "gelu": _activation, "relu": _activation, "sigmoid": _activation, "tanh": _activation, "softplus": _activation,
    "softmax": _softmax, "clamp": _dropped("a clamp"), "masked_fill": _dropped("a mask"), "neg": _dropped("a sign"),
    "exp": _dropped("an exponential"), "sum": _normalised, "scaled_dot_product_attention": _scaled_dot,
    "flip": _dropped("a reversal"), "roll": _dropped("a shift"),
    "linear": _product(functional.linear), "matmul": _product(torch.matmul),
}
