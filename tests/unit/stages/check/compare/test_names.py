"""Names of two dumps that mean the same, from structure alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.errors import UsageError
from dayzero.stages.check.compare.names import Shape, derive, read_map
from dayzero.stages.check.compare.places import fill, numbers, template
from dayzero.stages.check.compare.views import Order, find_order, part_columns


def _shapes(*names: str, width: int = 8, widths: dict[str, int] | None = None, layers: int = 2) -> dict[str, Shape]:
    found = {}
    for order, name in enumerate(names):
        tensors = frozenset([("output", "0", (widths or {}).get(name, width)), ("input", "0", width)])
        every = frozenset((number,) for number in range(layers)) if "*" in name else frozenset([()])
        found[name] = Shape(tensors, "linear", order, every)
    return found


def _pairs(a: dict[str, Shape], b: dict[str, Shape]) -> dict[tuple[str, ...], tuple[str, ...]]:
    return {pair.b: pair.a for pair in derive(a, b)}


A = ("model.embed", "model.layers.*.attn.q", "model.layers.*.attn.k", "model.layers.*.attn.v", "model.layers.*.attn",
     "model.layers.*.mlp", "model.norm")


@pytest.mark.parametrize("rename", [
    lambda name: name, lambda name: f"module.{name}", lambda name: name.replace("model.", "model.language_model."),
    lambda name: name.replace("model.", ""), lambda name: name.replace(".attn", "._wrapped.attn"),
    lambda name: name.replace("model.layers.*", "module.layers.*._wrapped._checkpointed").replace("model.", "module.")])
def test_beginnings_and_wrappers(rename) -> None:
    a = _shapes(*A)
    assert _pairs(a, _shapes(*map(rename, A))) == {(rename(name),): (name,) for name in A}
    assert _pairs(_shapes(*map(rename, A)), a) == {(name,): (rename(name),) for name in A}


def test_a_fused_module_is_its_parts_by_their_widths() -> None:
    parts = {"model.layers.*.attn.q": 16, "model.layers.*.attn.k": 4, "model.layers.*.attn.v": 4}
    a = _shapes(*A, widths=parts)
    b = _shapes("model.embed", "model.layers.*.attn.qkv", "model.layers.*.attn", "model.layers.*.mlp", "model.norm",
                widths={"model.layers.*.attn.qkv": 24})
    assert _pairs(a, b)["model.layers.*.attn.qkv",] == tuple(parts)
    assert _pairs(b, a)[tuple(parts)] == ("model.layers.*.attn.qkv",)
    wide = _shapes(*b, widths={"model.layers.*.attn.qkv": 25})
    assert ("model.layers.*.attn.qkv",) not in _pairs(a, wide)


def test_what_is_named_otherwise_is_paired_by_shapes_and_order() -> None:
    a = _shapes(*A, widths={"model.layers.*.mlp": 32})
    b = _shapes("wte", "h.*.q_lin", "h.*.k_lin", "h.*.v_lin", "h.*.sa", "h.*.ffn", "ln_f", widths={"h.*.ffn": 32})
    assert _pairs(a, b) == {(other,): (name,) for name, other in zip(A, b, strict=True)}
    few = _shapes("wte", "h.*.ffn", widths={"h.*.ffn": 31})
    assert ("h.*.ffn",) not in _pairs(a, few)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_name_is_in_two_pairs(data) -> None:
    part = st.sampled_from(["a", "b", "q", "k", "mlp", "*"])
    names = st.lists(st.lists(part, min_size=1, max_size=4).map(".".join), min_size=1, max_size=8, unique=True)
    width = st.sampled_from([4, 8])
    a, b = ({name: Shape(frozenset([("output", "0", data.draw(width))]), "linear", order,
                         frozenset([(0,) * name.count("*")])) for order, name in enumerate(data.draw(names))}
            for _ in range(2))
    pairs = derive(a, b)
    for names in ([name for pair in pairs for name in pair.a], [name for pair in pairs for name in pair.b]):
        assert len(names) == len(set(names))
    assert all(len({name.count("*") for name in (*pair.a, *pair.b)}) == 1 for pair in pairs)


@settings(max_examples=30, deadline=None)
@given(widths=st.lists(st.sampled_from([2, 4, 8]), min_size=2, max_size=4), seed=st.integers(0, 99), data=st.data())
def test_the_order_of_parts_is_seen_on_the_values(widths: list[int], seed: int, data) -> None:
    shared = int(np.gcd.reduce(widths))
    groups = data.draw(st.sampled_from([n for n in range(1, shared + 1) if shared % n == 0]))
    order = tuple(data.draw(st.permutations(range(len(widths)))))
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal((5, width)) for width in widths]
    whole = np.empty((5, sum(widths)))
    for index, part in zip(part_columns(widths, Order(order, groups)), parts, strict=True):
        whole[:, index] = part
    found, apart = find_order(_Grid(whole + 1e-3), [_Grid(part) for part in parts])
    assert apart < 1e-2
    for index, part in zip(part_columns(widths, found), parts, strict=True):
        assert np.array_equal(whole[:, index], part)


class _Grid:
    extra, dtype, order = 1, "F64", ()

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.width = values, values.shape[1]
        self.keys, self.columns = np.arange(len(values)), np.arange(values.shape[1])

    def read(self, keys, columns=None) -> np.ndarray:
        return self.values[keys]


def test_templates_go_both_ways() -> None:
    name = "model.layers.12.mlp.experts.3.w1"
    assert template(name) == "model.layers.*.mlp.experts.*.w1" and numbers(name) == (12, 3)
    assert fill(template(name), numbers(name)) == name


@pytest.mark.parametrize("text", ["", "[]", '{"map": [{"a": ["x"]}]}', '{"map": [{"a": ["x.*"], "b": ["y"]}]}',
                                  '{"map": [{"a": ["x", "y"], "b": ["z", "w"]}]}', "{" * 5000])
def test_a_map_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="--map"):
        read_map(path)
    with pytest.raises(UsageError, match="cannot read"):
        read_map(tmp_path / "absent.json")
