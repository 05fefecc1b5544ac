"""Layouts that lack memory: what they keep in the host's memory, and that they are slower by no less than it takes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.plan_models import dense, device, sparse, target

from dayzero.placement.many import Layouts
from dayzero.schema import Layout
from dayzero.stages.plan.evaluate import Evaluated, evaluate
from dayzero.stages.plan.ways.relief import relieved

ALONE, SOME = Layouts.of([Layout()]), Layouts.of([Layout(tp=1, dp=2), Layout(tp=2), Layout(pp=2)])


def search(model, there, layouts: Layouts = SOME) -> tuple[Evaluated, Evaluated, dict]:
    def again(other, some: Layouts) -> Evaluated:
        return evaluate(model, other, some)

    found = evaluate(model, there, layouts)
    return found, *relieved(model, there, found, again)


def test_where_all_fit_nothing_moves() -> None:
    found, kept, moved = search(dense(), target(2, on=device(host_bandwidth=5e10)))
    assert found.fits.all() and kept is found and not moved


def test_without_a_stated_bandwidth_nothing_moves() -> None:
    found, kept, moved = search(dense(), target(2, on=device(memory_bytes=2 * 10**8)))
    assert not found.fits.any() and kept is found and not moved


def test_while_some_layout_fits_nothing_moves() -> None:
    there = target(2, on=device(memory_bytes=250 * 10**6, host_bandwidth=1e10), concurrency=1, input_tokens=32,
                   output_tokens=8)
    found, kept, moved = search(dense(), there)
    assert list(found.fits) == [False, True, True] and kept is found and not moved


def test_a_small_device_keeps_weights_in_the_host_s_memory() -> None:
    """135 M parameters in bf16 are 269 MB, and the device has 250 MB."""
    there = target(1, on=device(memory_bytes=250 * 10**6, host_bandwidth=1e10), concurrency=1, input_tokens=32,
                   output_tokens=8)
    found, kept, moved = search(dense(), there, ALONE)
    assert not found.fits.any() and kept.fits.all()
    outside = moved[0].noun
    lacking = int(found.need_bytes[0]) - there.cluster.usable_bytes
    assert lacking <= outside.host_bytes <= lacking + 0.05 * 2 * 134_515_008
    assert outside.shares.keys() == {"weights"}
    assert outside.bound_s == pytest.approx(outside.host_bytes / 1e10)
    assert kept.need_bytes[0] == found.need_bytes[0] - outside.host_bytes <= there.cluster.usable_bytes
    assert kept.tpot_s[0] >= found.tpot_s[0] + outside.bound_s * (1 - 1e-9)
    assert kept.ttft_s[0] >= found.ttft_s[0] + outside.bound_s * (1 - 1e-9)
    assert kept.tokens_per_s[0] < found.tokens_per_s[0]


def test_of_experts_a_token_needs_few() -> None:
    """A single sequence visits 4 of 64 experts: a pass needs a sixteenth of what is moved."""
    there = target(1, on=device(memory_bytes=1200 * 10**6, host_bandwidth=1e10), concurrency=1, input_tokens=32,
                   output_tokens=8)
    _, kept, moved = search(sparse(), there, ALONE)
    assert moved and kept.fits[0]
    assert moved[0].noun.shares.keys() == {"experts"}
    assert moved[0].noun.needed_bytes == pytest.approx(moved[0].noun.host_bytes / 16, rel=1e-6)


def test_what_cannot_be_moved_does_not_fit() -> None:
    there = target(1, on=device(memory_bytes=250 * 10**6, host_bandwidth=1e10, host_memory_bytes=10**6))
    found, kept, moved = search(dense(), there, ALONE)
    assert not moved and np.array_equal(kept.fits, found.fits)
