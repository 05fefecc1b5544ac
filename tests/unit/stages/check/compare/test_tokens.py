"""Positions at which two runs would choose other tokens, by their logits and by what a server tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.support.dumps import Step, Tensor, runs, write

from dayzero.runtime.golden import Writer
from dayzero.runtime.golden.logprobs import Logprobs, entries
from dayzero.schema import Layout
from dayzero.schema.golden import Origin, RankDump
from dayzero.stages.check.compare import compare, overview, to_contract


def _logits() -> np.ndarray:
    """[12, 30]: row i chooses i and then i + 1, one apart; no other value is near."""
    values = np.random.default_rng(0).uniform(0, 1, (12, 30)).astype(np.float32)
    for row in range(12):
        values[row, row], values[row, row + 1] = 9, 8
    return values


def _dump(folder: Path, values: np.ndarray) -> Path:
    return write(folder, [Step(runs((0, 0, 8), (4, 0, 4)), [
        Tensor("", values, what="logits", slot="logits", kind="model")])])


def test_other_tokens_are_listed_with_both_margins(tmp_path: Path) -> None:
    a, b = _logits(), _logits()
    a[5, 6] = 9 - 1e-5  # a near-tie that any rounding turns
    b[5, 6] = 9 + 1e-5
    b[9, 20] = 9.5  # in the second sequence
    found = compare(_dump(tmp_path / "a", a), _dump(tmp_path / "b", b))
    near, far = found.tokens
    assert (near.sequence, near.position, near.a, near.b, near.tie) == (0, 6, 5, 6, True)
    assert near.a_margin == near.lead == pytest.approx(1e-5, rel=0.1) == near.b_margin
    assert near.given == (6 * 7) % 97
    assert (far.sequence, far.position, far.a, far.b, far.tie) == (4, 2, 9, 20, False)
    assert (far.a_margin, far.b_margin) == (1.0, 0.5) and far.lead == pytest.approx(9 - a[9, 20])
    assert found.logits[0].ties == 1 and found.logits[0].argmax == 10 / 12
    assert far.given == (2 * 7 + 4) % 97
    assert [each["tie"] for each in to_contract(found)["tokens"]] == [True, False]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(overview(found))
    words = capture.get()
    assert "other likeliest tokens at 2 positions, 1 of them near-ties" in words
    assert "sequence 4, position 2: 9 (leads by 1) becomes 20 (by 0.5)" in words


def test_the_last_row_has_no_given_token(tmp_path: Path) -> None:
    b = _logits()
    b[11, 0] = 20
    [last] = compare(_dump(tmp_path / "a", _logits()), _dump(tmp_path / "b", b)).tokens
    assert (last.sequence, last.position, last.given) == (4, 4, -1)


def _server(folder: Path, top_ids: list[list[int]], top: list[list[float]]) -> Path:
    origin = Origin(release="m", digests={}, engine="server", libraries={}, dtype="F64", device="not known")
    folder.mkdir()
    writer = Writer(folder, RankDump(finished=False, origin=origin, layout=Layout(), rank=0, place={}, seed=0,
                                     mode="whole"))
    made, values = entries(0, np.array([5, 6, 7]), Logprobs(np.array([-1.0, -2.0]), np.array(top_ids), np.array(top)))
    writer.begin(made)
    for entry, data in values:
        writer.add(entry, data)
    writer.finish()
    return folder


def test_servers_that_would_choose_other_tokens(tmp_path: Path) -> None:
    a = _server(tmp_path / "a", [[6, 1], [7, 2]], [[-0.1, -3.0], [-0.5, -0.51]])
    b = _server(tmp_path / "b", [[6, 1], [2, 7]], [[-0.1, -3.0], [-0.5, -0.52]])
    [found] = compare(a, b).tokens
    assert (found.name, found.position, found.given, found.a, found.b, found.tie) == ("logprobs", 2, 7, 7, 2, True)
    assert (found.a_margin, found.b_margin, found.lead) == pytest.approx((0.01, 0.02, 0.01))
