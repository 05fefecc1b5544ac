"""Peaks of private memory."""

from __future__ import annotations

import time

import numpy as np

from dayzero.backends import host
from dayzero.runtime.memory import PeakSampler


def test_a_peak_is_seen_with_what_was_going_on() -> None:
    phase = "before"
    host.trim()  # what was freed before and is taken again would not count
    with PeakSampler(lambda: phase) as sampler:
        phase = "holding"
        block = np.ones(8 << 20)  # 64 MiB
        time.sleep(0.1)
        del block
        phase = "after"
        time.sleep(0.05)
    assert 60 << 20 < sampler.peak - sampler.base < 80 << 20
    assert sampler.during == "holding"


def test_mapped_files_are_not_private(tmp_path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(64 << 20))
    with PeakSampler(lambda: "") as sampler:
        mapped = np.memmap(path, dtype=np.uint8, mode="r")
        assert int(mapped[::4096].sum()) == 0  # touch every page
        time.sleep(0.05)
    assert sampler.peak - sampler.base < 16 << 20
