"""The faster way is found by trying both."""

from __future__ import annotations

import pytest

from dayzero.runtime.tiers.foresight import Foresight


@pytest.mark.parametrize(("seconds", "faster"), [({"none": 1.0, "router": 0.8}, "router"),
                                                 ({"none": 0.5, "router": 0.8}, "none")])
def test_the_faster_way_is_kept(seconds: dict[str, float], faster: str) -> None:
    foresight = Foresight([], [], "tried")
    foresight._few = True
    ways = []
    for number in range(40):
        ways.append(foresight.way)
        foresight.passed(seconds[foresight.way] + 10 * (number % 4 == 0))  # the first after a change does not count
    assert ways[:24] == (["none"] * 4 + ["router"] * 4) * 3 and set(ways[24:]) == {faster}


def test_prompts_are_not_compared() -> None:
    foresight = Foresight([], [], "tried")
    for _ in range(40):
        foresight.passed(1.0)
    assert foresight.way == "none"
