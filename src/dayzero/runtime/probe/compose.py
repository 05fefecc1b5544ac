"""From what every rank found to one topology. Without torch."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

import msgspec

from dayzero.data.devices import LOCAL, known_device
from dayzero.schema import Reached, digest
from dayzero.schema.topology import Figure, Level, Timing, Topology

from .fit import fitted
from .found import Found

_LONGEST = 32
"""Letters of a device or network in the name of a file."""


def compose(found: Sequence[Found], network: str, seconds: float) -> Topology:
    """The topology that ranks measured. `network`: what the user calls what joins the nodes."""
    first, per_host = found[0], Counter(one.host for one in found)
    device = known_device(first.device)
    name = device.name if device else _plain(first.device) or LOCAL
    nodes = len(per_host)
    made = Topology(
        name="", device=name, devices_per_node=max(per_host.values()), nodes=nodes,
        network=network if nodes > 1 else "", backend=first.backend, date=datetime.date.today().isoformat(),
        levels=_levels(first, max(per_host.values()), network), figures=_figures(found),
        missing={what: why for one in found for what, why in one.missing.items()}, environment=first.environment,
        seconds=round(seconds, 1))
    return named(made)


def named(topology: Topology) -> Topology:
    """With the name that its content gives it."""
    parts = [topology.device[:_LONGEST], f"{topology.nodes}x{topology.devices_per_node}",
             _plain(topology.network)[:_LONGEST], topology.date, digest(msgspec.structs.replace(topology, name=""))[:8]]
    return msgspec.structs.replace(topology, name="-".join(part for part in parts if part))


def _plain(text: str) -> str:
    """Letters and digits of a name, in lower case, with hyphens between."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())


def _levels(one: Found, on_host: int, network: str) -> tuple[Level, ...]:
    """All ranks agreed on every second, so what the first holds is what all of them took."""
    rounds: dict[tuple[int, str], dict[int, list[float]]] = defaultdict(dict)
    about = {}
    for call in one.calls:
        rounds[call.level, call.collective][call.size] = call.seconds
        about[call.level, call.collective] = call
    timings: dict[int, list[tuple[Timing, Reached]]] = defaultdict(list)
    for (level, collective), times in rounds.items():
        call = about[level, collective]
        timings[level].append(fitted(collective, call.ranks, call.groups, times))
    return tuple(Level(name=_name(domain, on_host, network), devices=domain,
                       reached={timing.collective: reached for timing, reached in timings[number]},
                       timings=tuple(timing for timing, _ in timings[number]))
                 for number, domain in enumerate(one.domains) if timings[number])


def _name(domain: int, on_host: int, network: str) -> str:
    return "node" if domain <= on_host else network or "network"


def _figures(found: Sequence[Found]) -> tuple[Figure, ...]:
    values: dict[str, list[float]] = defaultdict(list)
    for one in found:
        for name, rounds in one.figures.items():
            values[name] += rounds
    return tuple(Figure(name=name, value=median(rounds), unit="FLOP/s" if name.startswith("matmul") else "B/s",
                        spread=(max(rounds) - min(rounds)) / median(rounds), rounds=len(rounds))
                 for name, rounds in values.items())
