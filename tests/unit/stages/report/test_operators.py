"""Operator rows: grouping over layers, bounds and hot spots."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.results import local_target, small_graph

from dayzero.stages.report.operators import hot_spots, rows, table_data

DEVICE = local_target().cluster.device


def test_equal_layers_become_one_row_and_nothing_is_lost() -> None:
    graph = small_graph(layers=30)
    grouped, single = rows(graph, DEVICE, grouped=True), rows(graph, DEVICE, grouped=False)
    assert len(single) == 2 * (30 * 10 + 1)
    assert len(grouped) == 2 * (10 + 1)
    for field in ("calls", "flops", "bytes", "seconds"):
        total = sum(getattr(row, field) for row in single)
        assert sum(getattr(row, field) for row in grouped) == pytest.approx(total)
    gate = next(row for row in grouped if row.module == "model.layers.*.mlp.gate_proj" and row.phase == "prefill")
    assert gate.calls == 30
    assert gate.flops == 30 * 2 * 64 * 1536 * 576
    assert gate.shapes == "1x64x576, 1536x576 -> 1x64x1536"


def test_bound_is_the_longer_of_compute_and_memory() -> None:
    single = rows(small_graph(1), DEVICE, grouped=False)
    prefill = next(row for row in single if row.module.endswith("gate_proj") and row.phase == "prefill")
    decode = next(row for row in single if row.module.endswith("gate_proj") and row.phase == "decode")
    assert prefill.seconds == pytest.approx(prefill.flops / 4.1e10)  # bf16 rate of the device
    assert decode.seconds == pytest.approx(decode.bytes / 1.1e10)  # its memory bandwidth


def test_hot_spots_are_sorted_shares_of_their_phase() -> None:
    grouped = rows(small_graph(), DEVICE, grouped=True)
    spots = hot_spots(grouped, "decode", top=100)
    shares = [share for _, share in spots]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    assert {row.phase for row, _ in spots} == {"decode"}
    assert spots[0][0].module == "lm_head"


def test_without_a_rate_there_is_no_bound_and_no_hot_spot() -> None:
    device = msgspec.structs.replace(DEVICE, flops={})
    grouped = rows(small_graph(), device, grouped=True)
    assert all(row.seconds is None for row in grouped)
    assert hot_spots(grouped, "decode") == []
    assert table_data(grouped)[0][-1] == ""
