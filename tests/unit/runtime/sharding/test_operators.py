"""Operators on parts give the parts of what they give on the whole, on ranks that are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.support.thread_ranks import ThreadGroup, together
from torch.nn import functional

from dayzero.runtime.sharding.sharded import Sharded, cut, whole

Given = tuple[torch.Tensor, int | None, tuple[int, ...]]


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


HEADS: Given = (_random(3, 8, 5, 16), 1, (8,))
PLAIN: Given = (_random(3, 8, 5, 16), None, ())


def _attend(query: torch.Tensor, key: torch.Tensor, **options: Any) -> torch.Tensor:
    return functional.scaled_dot_product_attention(query, key, key, is_causal=True, **options)


def _written(value: torch.Tensor) -> torch.Tensor:
    value = value.clone()
    value[:, :, 2, :3] = 7.0
    value[..., 0] = value[..., 1]
    value.mul_(2)
    value += 1
    return value


CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[Given, ...], str]] = {
    "heads are merged": (lambda x: x.transpose(1, 2).reshape(3, 5, 128) @ torch.ones(128, 7), (HEADS,), "sum"),
    "batch and heads are one dimension": (
        lambda x: x.reshape(24, 5, 16).bmm(torch.ones(24, 16, 3)).view(3, 8, 5, 3), (HEADS,), "parts"),
    "scores": (lambda x, y: (x @ y.transpose(2, 3)).softmax(-1) @ y, (HEADS, PLAIN), "parts"),
    "scores, keys cut": (lambda x, y: (x @ y.transpose(2, 3)).softmax(-1) @ y, (PLAIN, HEADS), "parts"),
    "attention": (_attend, (HEADS, PLAIN), "parts"),
    "one key head": (lambda x, y: _attend(x, y, enable_gqa=True), (HEADS, (_random(3, 1, 5, 16), None, ())), "parts"),
    "two key heads": (
        lambda x, y: _attend(x, y, enable_gqa=True), (HEADS, (_random(3, 2, 5, 16), 1, (2,))), "parts"),
    "key heads that cannot be cut": (
        lambda x, y: _attend(x, y, enable_gqa=True),
        ((_random(1, 12, 5, 4), 1, (12,)), (_random(1, 3, 5, 4), None, ())), "parts"),
    "joined and taken apart": (
        lambda x, y: torch.cat([x, y], -1).transpose(1, 2).split([6, 4], 1)[0] * 2,
        ((_random(2, 3, 6), 2, (6,)), (_random(2, 3, 4), 2, (4,))), "parts"),
    "a convolution of each channel": (
        lambda x, w: functional.silu(functional.conv1d(torch.cat([x, x], 1), w, padding=3, groups=12)[..., :4]),
        ((_random(2, 6, 4), 1, (6,)), (_random(12, 1, 4), None, ())), "parts"),
    "row": (lambda x, w: functional.linear(x, w, torch.ones(5)), ((_random(2, 3, 6), 2, (6,)),
                                                                  (_random(5, 6), None, ())), "sum"),
    "column": (lambda x, w: functional.linear(x, w, torch.ones(6)).relu(), ((_random(2, 3, 5), None, ()),
                                                                            (_random(6, 5), 0, (6,))), "parts"),
    "fused gate and up": (
        lambda x, w: torch.mul(*functional.linear(x, w).chunk(2, -1)),
        ((_random(2, 3, 5), None, ()), (_random(8, 5), 0, (4, 4))), "parts"),
    "interleaved gate and up": (
        lambda x, w: functional.linear(x, w)[..., ::2] * functional.linear(x, w)[..., 1::2],
        ((_random(2, 3, 5), None, ()), (_random(8, 5), 0, (8,))), "parts"),
    "einsum": (lambda x, y: torch.einsum("bhsd,bhtd->bhst", x, y), (HEADS, PLAIN), "parts"),
    "a cache that begins": (lambda x: torch.cat([torch.tensor([]), x], -2), (HEADS,), "parts"),
    "keys are repeated": (lambda x: x[:, :, None].expand(3, 8, 4, 5, 16).reshape(3, 32, 5, 16), (HEADS,), "parts"),
    "written into": (_written, (HEADS,), "parts"),
    "norms": (lambda x: functional.layer_norm(x, (16,)) + functional.rms_norm(x, (16,), torch.ones(16)), (HEADS,),
              "parts"),
    "mean of what is cut": (lambda x: x.transpose(1, 2).flatten(2).pow(2).mean(-1, keepdim=True), (HEADS,), "sum"),
    "a state for each head": (lambda x: x.new_zeros(3, 5, 2, 8) + x.mean(-1).transpose(1, 2)[:, :, None], (HEADS,),
                              "parts"),
    "embedding": (lambda w: functional.embedding(torch.tensor([[1, 9, 0]]), w), ((_random(10, 4), 0, (10,)),), "sum"),
}  # fmt: skip


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_like_the_whole(case: str, inference: bool) -> None:
    function, given, kind = CASES[case]
    with torch.inference_mode(inference):
        wanted = function(*(value for value, *_ in given))

    def run(group: ThreadGroup) -> tuple[torch.Tensor, bool, list[str]]:
        with torch.inference_mode(inference):
            parts = [value if dim is None else cut(value, dim, segments, group) for value, dim, segments in given]
            made = function(*parts)
            return whole(made), isinstance(made, Sharded), [each for each in group.whole if "fill_" not in each]

    for made, in_parts, ran_whole in together(2, run):
        torch.testing.assert_close(made, wanted)
        assert in_parts == (kind == "parts") and ran_whole == []


def test_what_has_no_rule_runs_whole_and_is_counted() -> None:
    value = _random(4, 6)

    def run(group: ThreadGroup) -> tuple[torch.Tensor, list[str]]:
        return torch.linalg.matrix_norm(whole(cut(value, 1, (6,), group).cumsum(1))), list(group.whole)

    for made, counted in together(2, run):
        torch.testing.assert_close(made, torch.linalg.matrix_norm(value.cumsum(1)))
        assert counted == ["aten.cumsum.default"]


def test_what_is_written_whole_is_cut_again() -> None:
    value = _random(4, 6)

    def run(group: ThreadGroup) -> torch.Tensor:
        parts = cut(value.clone(), 1, (6,), group)
        parts.index_fill_(1, torch.tensor([1]), 5.0)
        return whole(parts)

    wanted = value.clone().index_fill_(1, torch.tensor([1]), 5.0)
    assert all(torch.equal(made, wanted) for made in together(2, run))


def test_gradients_of_column_and_row() -> None:
    """A gated block with an attention between: gradients of the input, of a plain norm weight, and of cut weights."""
    into, out, x, scale = (_random(*shape).double() for shape in ((16, 6), (6, 16), (2, 3, 6), (4,)))

    def block(x: Any, into: Any, out: Any, scale: Any) -> Any:
        heads = functional.linear(x, into).view(2, 3, 4, 4).transpose(1, 2) * scale
        made = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return functional.linear(made.transpose(1, 2).reshape(2, 3, 16), out)

    plain = [each.clone().requires_grad_() for each in (x, into, out, scale)]
    block(*plain).pow(2).sum().backward()

    def run(group: ThreadGroup) -> list[torch.Tensor]:
        own = [x.clone(), cut(into, 0, (16,), group), cut(out, 1, (16,), group), scale.clone()]
        own = [torch.nn.Parameter(each) for each in own]
        block(*own).pow(2).sum().backward()
        return [whole(each.grad) for each in own]

    for grads in together(2, run):
        for grad, wanted in zip(grads, plain, strict=True):
            torch.testing.assert_close(grad, wanted.grad)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_gradients_of_key_heads_that_are_whole_on_every_rank(count: int) -> None:
    """Each rank's query heads look at all of one key head, or at some of three: what these get is added up."""
    query, key = _random(1, 12, 5, 4), _random(1, count, 5, 4)
    wanted = [each.clone().requires_grad_() for each in (query, key)]
    weights = _random(1, 12, 5, 4).square()
    (_attend(*wanted, enable_gqa=True) * weights).sum().backward()

    def run(group: ThreadGroup) -> list[torch.Tensor]:
        own = [cut(query, 1, (12,), group).requires_grad_(), key.clone().requires_grad_()]
        out = _attend(*own, enable_gqa=True) * cut(weights, 1, (12,), group)
        whole(out).sum().backward()
        return [whole(each.grad) for each in own]

    for grads in together(2, run):
        for grad, expected in zip(grads, wanted, strict=True):
            torch.testing.assert_close(grad, expected.grad)
