"""Columns before a sequence: padding on the left, or what is packed before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.support.dumps import Step, Tensor, runs, write

from dayzero.runtime.golden import open_dump
from dayzero.runtime.golden.columns import columns_before
from dayzero.runtime.substitution import Place
from dayzero.stages.check.locate.errors import sets
from dayzero.stages.check.locate.recorded import DumpRows

PLACE = Place("indexer", "output", "0")


def chosen(folder: Path, *steps: tuple[tuple[tuple[int, int, int], ...], list[list[int]]]) -> Path:
    """A dump of positions that were chosen in each pass."""
    made = [Step(runs(*rows), [Tensor("indexer", np.array(values), dtype="I64", kind="attention",
                                      axes=("token", "channel"))]) for rows, values in steps]
    return write(folder, made)


def test_what_is_packed_before_a_sequence(tmp_path: Path) -> None:
    with open_dump(chosen(tmp_path / "d", (((0, 0, 2), (1, 0, 3)), [[0], [1], [2], [2], [4]]))) as dump:
        assert columns_before(dump) == {0: 0, 1: 2}


def test_padding_on_the_left_of_a_batch(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", [Step(runs((-1, 0, 3), (7, 0, 1), (3, 0, 4)), [], shape=(2, 4)),
                                    Step(runs((7, 1, 1), (3, 4, 1)), [], phase="decode", shape=(2, 1))])
    with open_dump(folder) as dump:
        assert columns_before(dump) == {7: 3, 3: 0}


def test_a_module_that_is_called_outside_of_the_model_has_no_columns(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", [Step(runs((0, 0, 3)), [], shape=(1, 3)), Step((), [], shape=())])
    with open_dump(folder) as dump:
        assert columns_before(dump) == {0: 0}


def test_positions_count_from_where_the_sequence_begins_and_sets_may_grow(tmp_path: Path) -> None:
    """Two sequences packed, the second of which goes on in passes with more to choose from."""
    folder = chosen(tmp_path / "d", (((0, 0, 3), (1, 0, 2)), [[0, 1], [1, 0], [2, 0], [3, 9], [4, 3]]),
                    (((1, 2, 1),), [[5, 3, 4]]))
    rows = DumpRows(folder)
    held = rows.held(PLACE, 1)
    assert held is not None and held.known.all()
    assert held.values.tolist() == [[0, 0, 0], [1, 0, 1], [2, 0, 1]]  # what is still to come is the token's own
    first = rows.held(PLACE, 0)
    assert first is not None and first.values.tolist() == [[0, 0], [1, 0], [2, 0]]
    rows.close()


def test_sets_of_positions_and_of_experts() -> None:
    values = np.array([[3, 2], [1, 0], [0, 2]])
    assert sets(PLACE, values).tolist() == [[0, 0], [0, 1], [0, 2]]
    assert sets(PLACE._replace(what="router", slot="indices"), values).tolist() == [[2, 3], [0, 1], [0, 2]]
