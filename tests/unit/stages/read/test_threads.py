"""Work in threads: order, failures, and stopping what still runs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError

import pytest

from dayzero.progress import SILENT
from dayzero.stages.read.threads import Meter, each


def test_results_come_in_the_order_of_the_items() -> None:
    def slowest_first(number: int) -> int:
        time.sleep(0.02 * (3 - number))
        return number

    assert list(each(slowest_first, range(4))) == [0, 1, 2, 3]


def test_a_failure_stops_the_others_where_they_tell_the_meter() -> None:
    meter, ended = Meter("working", 0, SILENT), threading.Event()

    def work(number: int) -> None:
        if number == 0:
            time.sleep(0.05)
            raise ValueError("first")
        try:
            for _ in range(10_000):  # 100 s, unless it is stopped
                time.sleep(0.01)
                meter.add(1)
        except CancelledError:
            ended.set()
            raise

    start = time.monotonic()
    with pytest.raises(ValueError, match="first"):
        list(each(work, range(50), meter))
    assert ended.is_set() and time.monotonic() - start < 5
