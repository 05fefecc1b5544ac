"""Names as patterns: the rule, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.errors import ReleaseError
from dayzero.stages.read.names import Rows, split, split_all, table


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lm_head.weight", ("lm_head.weight", -1, -1)),
        ("model.layers.12.mlp.up_proj.weight", ("model.layers.{L}.mlp.up_proj.weight", 12, -1)),
        ("model.layers.3.mlp.experts.17.w1.weight", ("model.layers.{L}.mlp.experts.{E}.w1.weight", 3, 17)),
        ("layers.3.block_sparse_moe.local_experts.0", ("layers.{L}.block_sparse_moe.local_experts.{E}", 3, 0)),
        ("experts.5.layers.2.w", ("experts.{E}.layers.2.w", -1, 5)),
        ("0.expert.1", ("{L}.expert.{E}", 0, 1)),
        ("layers.1.blocks.2.experts.3.4", ("layers.{L}.blocks.2.experts.{E}.4", 1, 3)),
        ("layers.007.w", ("layers.007.w", -1, -1)),
        ("layers.00.experts.4.w", ("layers.00.experts.{E}.w", -1, 4)),
        ("layers.1234567890123456789.w", ("layers.1234567890123456789.w", -1, -1)),
        ("layers.1.w2.x_3", ("layers.{L}.w2.x_3", 1, -1)),
        ("layers.١.w", ("layers.١.w", -1, -1)),  # an Arabic-Indic digit is not how numbers are printed
        ("", ("", -1, -1)),
    ],
)
def test_split(name: str, expected: tuple[str, int, int]) -> None:
    assert split(name) == expected


SEGMENT = st.one_of(
    st.sampled_from(["model", "layers", "experts", "shared_experts", "mlp", "w1", "0", "1", "00", "07", "61", ""]),
    st.integers(0, 10**20).map(str), st.text(max_size=6))  # fmt: skip
NAME = st.lists(SEGMENT, min_size=1, max_size=8).map(".".join).filter(lambda n: "{L}" not in n and "{E}" not in n)
KIND = st.sampled_from([("BF16", (2, 3)), ("F32", (2, 3)), ("BF16", (6,))])


def rows_of(tensors: dict[str, tuple[str, tuple[int, ...]]], base: int = 0) -> Rows:
    kinds: dict[tuple[str, str, tuple[int, ...]], int] = {}
    columns = []
    for at, (name, (dtype, shape)) in enumerate(tensors.items()):
        pattern, layer, expert = split(name)
        columns.append((kinds.setdefault((pattern, dtype, shape), len(kinds)), layer, expert, base + at))
    kind, layer, expert, start = np.array(columns, dtype=np.int64).reshape(-1, 4).T
    return Rows(kinds=tuple(kinds), kind=kind, layer=layer, expert=expert, start=start)


@given(st.lists(st.dictionaries(NAME, KIND, max_size=12), min_size=1, max_size=4))
def test_the_table_holds_exactly_what_went_in(shards: list[dict[str, tuple[str, tuple[int, ...]]]]) -> None:
    seen: set[str] = set()
    unique = []
    for shard in shards:
        unique.append({name: kind for name, kind in shard.items() if name not in seen})
        seen |= set(shard)
    files = tuple(f"f{n}" for n in range(len(unique)))
    made = table(files, [rows_of(shard, base=1000 * n) for n, shard in enumerate(unique)])

    assert sorted(made.names()) == sorted(seen)
    order = [(group.pattern, group.shape, group.dtype) for group in made.groups]
    assert order == sorted(order)
    places = {group.name(row): (group.dtype, group.shape, int(group.file.values[row]), int(group.start.values[row]))
              for group in made.groups for row in range(group.count)}  # fmt: skip
    expected = {name: (*kind, n, 1000 * n + at) for n, shard in enumerate(unique)
                for at, (name, kind) in enumerate(shard.items())}  # fmt: skip
    assert places == expected


def test_a_name_in_two_files_is_an_error_that_names_both() -> None:
    one = rows_of({"layers.0.w": ("BF16", (2, 3)), "layers.1.w": ("BF16", (2, 3))})
    other = rows_of({"layers.1.w": ("F32", (2, 3))})
    with pytest.raises(ReleaseError, match=r"'layers.1.w' is in two files: a and b"):
        table(("a", "b"), [one, other])


@given(st.lists(st.from_regex(r"(layers|experts|a|[0-9]{1,20}|x\n|\0)(\.(layers|experts|w|[0-9]{1,20}|x\n|\0)){0,4}",
                              fullmatch=True), max_size=6))  # fmt: skip
def test_all_at_once_is_one_by_one(names: list[str]) -> None:
    patterns, layers, experts = split_all(names)
    assert list(zip(patterns, layers.tolist(), experts.tolist(), strict=True)) == [split(name) for name in names]
