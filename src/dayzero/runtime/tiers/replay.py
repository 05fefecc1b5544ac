"""Policies on a recorded trace: which share of the chosen experts is there already. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from math import inf

from .policies import Policy

Trace = Sequence[Sequence[Sequence[Hashable]]]
"""For each pass, for each layer in order: the experts that are needed together."""
Step = tuple[int, Sequence[Hashable]]
"""Pass, and what is needed together."""


def replay(trace: Trace, policy: Policy, slots: int, skip: int = 0) -> float:
    """Share of the needs that find their expert in one of the slots, in the passes after the first `skip`."""
    return _share(list(_steps(trace)), slots, skip, lambda number, time, key: policy.used(key, time))


def best(trace: Trace, slots: int, skip: int = 0) -> float:
    """The same for a policy that knows the future: what is needed again last makes room (Belady, 1966)."""
    steps = list(_steps(trace))
    following: list[dict[Hashable, float]] = []
    later: dict[Hashable, float] = {}
    for number in range(len(steps) - 1, -1, -1):
        following.append({key: later.get(key, inf) for key in steps[number][1]})
        later |= dict.fromkeys(steps[number][1], number)
    following.reverse()
    return _share(steps, slots, skip, lambda number, time, key: -following[number][key])


def _share(steps: Sequence[Step], slots: int, skip: int, worth: Callable[[int, int, Hashable], float]) -> float:
    """Hits by need, where what is worth least makes room. `worth`: from (step, pass, key)."""
    there: dict[Hashable, float] = {}
    hits = needs = 0
    for number, (time, needed) in enumerate(steps):
        locked = set(needed)
        for key in needed:
            if time >= skip:
                needs += 1
                hits += key in there
            if key not in there and len(there) >= slots:
                del there[min((each for each in there if each not in locked), key=there.__getitem__)]
            there[key] = worth(number, time, key)
    return hits / needs if needs else 1.0


def _steps(trace: Trace) -> Iterator[Step]:
    for time, layers in enumerate(trace):
        for number, needed in enumerate(layers):
            yield time, [(number, key) for key in needed]
