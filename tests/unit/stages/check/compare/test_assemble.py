"""Tensors that ranks and passes hold in parts are the whole again, however they were cut."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import dumps

from dayzero.errors import StoreError
from dayzero.runtime.golden import open_dump
from dayzero.schema import Column, Layout
from dayzero.schema.golden import Held, Sample
from dayzero.stages.check.compare import compare
from dayzero.stages.check.compare.assemble import Assembled
from dayzero.stages.check.compare.pieces import row_key, split_key
from dayzero.stages.check.compare.places import places_of


def _only(folder: Path):
    dump = open_dump(folder)
    (items,) = places_of(dump).values()
    return Assembled(dump, items)


def _cuts(draw, size: int, parts: int) -> list[tuple[int, int]]:
    """`size` in `parts` runs, some of them empty."""
    ends = sorted(draw(st.lists(st.integers(0, size), min_size=parts - 1, max_size=parts - 1)))
    return list(zip([0, *ends], [*ends, size], strict=True))


@st.composite
def _cut(draw):
    """Rows of two sequences over passes and ranks, columns over ranks in a random order of runs, terms of a sum."""
    lengths = (draw(st.integers(1, 6)), draw(st.integers(1, 6)))
    columns, tp, terms = draw(st.integers(1, 9)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    pieces = draw(st.permutations(_cuts(draw, columns, tp * 2)))
    held = [tuple(sorted(pieces[rank::tp])) if draw(st.booleans()) else tuple(pieces[rank::tp]) for rank in range(tp)]
    chunks = [(sequence, first, end) for sequence, length in enumerate(lengths)
              for first, end in _cuts(draw, length, draw(st.integers(1, 3))) if end > first]
    steps = _cuts(draw, len(chunks), draw(st.integers(1, 3)))
    padding = draw(st.integers(0, 2))
    order = draw(st.permutations(chunks)) if len(steps) == 1 else chunks
    return lengths, columns, held, terms, [order[first:end] for first, end in steps if end > first], padding


@settings(max_examples=30, deadline=None)
@given(cut=_cut(), seed=st.integers(0, 2**31))
def test_random_shardings_put_together_are_the_whole(cut, seed: int) -> None:
    lengths, columns, held, terms, passes, padding = cut
    rng = np.random.default_rng(seed)
    parts = [[rng.integers(-99, 99, (length, columns)).astype(np.float32) for length in lengths] for _ in range(terms)]
    ranks = {}
    for term in range(terms):
        for tp, ranges in enumerate(held):
            index = np.concatenate([np.arange(first, end) for first, end in ranges])
            steps = []
            for chunks in passes:
                values = [parts[term][sequence][first:end][:, index] for sequence, first, end in chunks]
                known = [(sequence, first, end - first) for sequence, first, end in chunks]
                rows = dumps.runs(*known, (-1, 0, padding))
                values.append(np.full((padding, len(index)), 1e9, np.float32))
                steps.append(dumps.Step(rows, [dumps.Tensor(
                    "m", np.concatenate(values), held=(Held(axis=1, size=columns, ranges=ranges),),
                    summed=("dp",) if terms > 1 else ())]))
            ranks[term * len(held) + tp] = ({"tp": tp, "dp": term}, steps)
    with tempfile.TemporaryDirectory() as folder:
        dumps.write(Path(folder) / "d", ranks, Layout(tp=len(held), dp=terms))
        found = _only(Path(folder) / "d")
        assert found.extra == 1 and found.width == columns
        assert list(zip(*(each.tolist() for each in split_key(found.keys)), strict=True)) == [
            (sequence, position) for sequence, length in enumerate(lengths) for position in range(length)]
        whole = np.concatenate([sum(part[sequence] for part in parts) for sequence in range(2)])
        assert np.array_equal(found.read(found.keys), whole)
        some = found.keys[::-1][:3]
        assert np.array_equal(found.read(some), whole[::-1][:3])


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_tensor_without_tokens_is_cut_along_any_axes(data) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), max_size=2, unique=True))
    ranges = {axis: _cuts(data.draw, shape[axis], 2) for axis in axes}
    ranks, last = {}, 2 ** len(axes)
    for rank in range(last):
        value, held = whole, []
        for bit, axis in enumerate(axes):
            first, end = ranges[axis][rank >> bit & 1]
            value = np.take(value, np.arange(first, end), axis=axis)
            held.append(Held(axis=axis, size=shape[axis], ranges=((first, end),)))
        names = tuple(f"dim{axis}" for axis in range(len(shape)))
        ranks[rank] = ({"tp": rank}, [dumps.Step((), [dumps.Tensor("w", value, what="gradient", axes=names,
                                                                   held=tuple(held))])])
    with tempfile.TemporaryDirectory() as folder:
        dumps.write(Path(folder) / "d", ranks, Layout(tp=last))
        found = _only(Path(folder) / "d")
        assert np.array_equal(found.read(found.keys), whole.reshape(-1, shape[-1]))


def test_what_both_samples_kept_is_found_by_its_place_in_the_whole(tmp_path: Path) -> None:
    whole = np.arange(40, dtype=np.float32).reshape(5, 8)
    sample = Sample(rows=Column([1, 4]), columns=Column([0, 2]))
    ranks = {rank: ({"tp": rank}, [dumps.Step(dumps.runs((0, 0, 5)), [dumps.Tensor(
        "m", whole[:, rank * 4 : rank * 4 + 4], held=(Held(axis=1, size=8, ranges=((rank * 4, rank * 4 + 4),)),),
        sample=sample)])]) for rank in range(2)}
    found = _only(dumps.write(tmp_path / "d", ranks, Layout(tp=2), mode="sampled"))
    assert found.columns.tolist() == [0, 2, 4, 6]
    assert np.array_equal(found.read(found.keys), whole[[1, 4]][:, [0, 2, 4, 6]])
    assert np.array_equal(found.read(found.keys[1:], np.array([2, 6])), whole[[4]][:, [2, 6]])


def test_a_replica_that_differs_is_known_by_its_digest(tmp_path: Path) -> None:
    value = np.ones((3, 4), np.float32)
    ranks = {rank: ({"tp": rank}, [dumps.Step(dumps.runs((0, 0, 3)), [dumps.Tensor("m", value + (rank == 2))])])
             for rank in range(3)}
    found = _only(dumps.write(tmp_path / "d", ranks, Layout(tp=3)))
    assert [(one.item.dump.rank, other.item.dump.rank, len(keys)) for one, other, keys in found.replicas] == [(0, 2, 3)]
    assert found.has_replicas


def test_layers_that_each_stage_counts_from_zero_are_numbered_through(tmp_path: Path) -> None:
    value = np.ones((2, 3), np.float32)

    def stage(count: int) -> list:
        return [dumps.Step(dumps.runs((0, 0, 2)), [dumps.Tensor(f"model.layers.{n}.mlp", value) for n in range(count)])]

    dump = open_dump(dumps.write(tmp_path / "d", {0: ({"pp": 0}, stage(3)), 1: ({"pp": 1}, stage(2))}, Layout(pp=2)))
    assert [each.name for each in places_of(dump)] == [f"model.layers.{n}.mlp" for n in range(5)]
    through = {0: ({"pp": 0}, stage(2)), 1: ({"pp": 1}, [dumps.Step(dumps.runs((0, 0, 2)), [
        dumps.Tensor(f"model.layers.{n}.mlp", value) for n in (2, 3)])])}
    dump = open_dump(dumps.write(tmp_path / "e", through, Layout(pp=2)))
    assert [each.name for each in places_of(dump)] == [f"model.layers.{n}.mlp" for n in range(4)]


def test_a_second_pass_over_the_same_rows_is_another_address(tmp_path: Path) -> None:
    def step(first: int, count: int, phase: str = "prefill"):
        return dumps.Step(dumps.runs((0, first, count)), [dumps.Tensor("m", np.ones((count, 2), np.float32))], phase)

    dump = open_dump(dumps.write(tmp_path / "d", [step(0, 3), step(3, 1, "decode"), step(4, 1, "decode"), step(0, 5)]))
    assert [(each.lap, len(items)) for each, items in places_of(dump).items()] == [(0, 3), (1, 1)]


def test_ranks_whose_shapes_do_not_fit_are_refused(tmp_path: Path) -> None:
    ranks = {rank: ({"tp": rank}, [dumps.Step(dumps.runs((0, 0, 2)), [dumps.Tensor(
        "m", np.ones((2, 3 + rank), np.float32))])]) for rank in range(2)}
    with pytest.raises(StoreError, match="do not fit together"):
        _only(dumps.write(tmp_path / "d", ranks, Layout(tp=2)))


def test_a_file_that_was_cut_since_is_told(tmp_path: Path) -> None:
    folder = dumps.write(tmp_path / "d", [dumps.Step(dumps.runs((0, 0, 2)), [dumps.Tensor("m", np.ones((2, 300)))])])
    found = _only(folder)
    part = next(folder.glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(StoreError, match="it ends at byte"):
        found.read(found.keys)


def test_keys_of_rows_go_both_ways() -> None:
    assert [each.tolist() for each in split_key(row_key(np.array([7]), np.array([123456])))] == [[7], [123456]]


def test_what_stands_for_a_module_of_another_stage_is_left_out(tmp_path: Path) -> None:
    value, rows = np.ones((2, 3), np.float32), dumps.runs((0, 0, 2))

    def stage(real: tuple[int, ...], embedding: str) -> list:
        made = [dumps.Tensor("embed", value * (embedding == "Toy"), kind="embedding", module=embedding)]
        for number in range(4):
            own = number in real
            made.append(dumps.Tensor(f"layers.{number}", value * own, kind="layer", module="Toy2" if own else "Absent"))
            made += [dumps.Tensor(f"layers.{number}.mlp", value)] if own else []
        return [dumps.Step(rows, made)]

    ranks = {0: ({"pp": 0}, stage((0, 1), "Toy")), 1: ({"pp": 1}, stage((2, 3), "Absent"))}
    dump = open_dump(dumps.write(tmp_path / "d", ranks, Layout(pp=2)))
    found = places_of(dump)
    layers = [f"layers.{number}{end}" for number in range(4) for end in ("", ".mlp")]
    assert sorted({each.name for each in found}) == ["embed", *layers]
    assert all(len(items) == 1 and items[0].entry.statistics.rms == 1 for items in found.values())


@pytest.mark.parametrize("swapped", [False, True])
def test_heads_that_ranks_do_not_say_they_hold_are_put_together(tmp_path: Path, swapped: bool) -> None:
    rows, weights = dumps.runs((0, 0, 6)), np.random.default_rng(0).random((6, 4, 6))

    def step(values: np.ndarray) -> list[dumps.Step]:
        return [dumps.Step(rows, [dumps.Tensor("layers.0.attn", values, slot="1", kind="attention")])]

    ranks = {rank: ({"tp": rank}, step(weights[:, 2 * (rank ^ swapped) :][:, :2])) for rank in range(2)}
    found = compare(dumps.write(tmp_path / "a", step(weights)), dumps.write(tmp_path / "b", ranks, Layout(tp=2)))
    [place] = found.places
    assert (place.kept, place.rows, place.relative_l2 == 0) == ("whole", 6, not swapped)
    assert found.passed is not swapped and any("other indices of axis 1" in each for each in found.told)
    assert not any("disagree" in check.name for check in found.checks)
