"""Logprobs made of logits, against the formula, and those that somebody told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.runtime.golden.test_dump import entry, head, run

from dayzero.runtime.golden import Writer, open_dump
from dayzero.runtime.golden.logprobs import Logprobs, entries, logprobs, statistics


def test_of_logits(tmp_path: Path) -> None:
    logits = np.array([[0, 1, 2, 3], [5, 0, 0, 0], [0, 0, 9, 0], [1, 1, 1, 1]], "<f4")
    writer = Writer(tmp_path / "d", head())
    writer.begin(run(0, 4))  # tokens 0, 1, 2, 3
    writer.add(entry(logits, what="logits", slot="logits", name=""), logits)
    writer.finish()
    with open_dump(tmp_path / "d") as dump:
        made = logprobs(dump, top=2)[0]
    wanted = [1 - np.log(np.exp([0, 1, 2, 3.0]).sum()), -np.log(np.exp(5.0) + 3), -np.log(np.exp(9.0) + 3)]
    np.testing.assert_allclose(made.tokens, wanted, rtol=1e-12)
    assert made.top_ids.tolist() == [[3, 2], [0, 1], [2, 0]]
    np.testing.assert_allclose(made.top[0, 0], 3 - np.log(np.exp([0, 1, 2, 3.0]).sum()), rtol=1e-12)


def test_what_was_told_comes_back(tmp_path: Path) -> None:
    told = Logprobs(np.array([-1.5, -0.25]), np.array([[4, -1], [2, 3]]), np.array([[-1.0, -np.inf], [-0.25, -3.0]]))
    writer = Writer(tmp_path / "d", head())
    made, values = entries(0, np.array([7, 4, 2]), told)
    writer.begin(made)
    for each, data in values:
        writer.add(each, data)
    writer.finish()
    with open_dump(tmp_path / "d") as dump:
        assert dump.rows(dump.items[0]).tolist() == [[0, 1], [0, 2]]
        found = logprobs(dump, top=2)[0]
    np.testing.assert_array_equal(found.tokens, told.tokens)
    np.testing.assert_array_equal(found.top_ids, told.top_ids)
    np.testing.assert_array_equal(found.top, told.top)


def test_statistics_leave_out_what_is_no_number() -> None:
    made = statistics(np.array([np.nan, np.inf, -np.inf, 3.0, -4.0]))
    assert (made.count, made.nan, made.inf, made.minimum, made.maximum, made.max_abs) == (5, 1, 2, -4, 3, 4)
    assert made.rms == pytest.approx(12.5**0.5)
    assert statistics(np.array([np.nan])).max_abs == 0
