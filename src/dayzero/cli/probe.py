"""The verb that measures links, devices and disks, and shows what was measured before."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dayzero.errors import UsageError

from .app import app
from .options import AsJson, drawn_progress, show
from .outputs import refuse_output

if TYPE_CHECKING:
    from dayzero.runtime.probe import Wish
    from dayzero.schema.topology import Topology


@app.command()
def probe(
    ranks: Annotated[int | None, typer.Option("--ranks", min=1, help="Processes; default: as many as devices, or as "
                                                                     "cores. Under torchrun: its own.")] = None,
    backend: Annotated[str, typer.Option("--backend", help="Of torch.distributed; default: the device's own.")] = "",
    seconds: Annotated[float, typer.Option("--seconds", min=1, max=3600, help="About what timing may take.")] = 10.0,
    disk: Annotated[Path | None, typer.Option("--disk", help="Folder on the disk to read from; default: the "
                                                             "temporary one.")] = None,
    domains: Annotated[str | None, typer.Option("--domains", help="Devices of a domain of each level, innermost first, "
                                                                  "like 8,64; default: found by pairs.")] = None,
    network: Annotated[str, typer.Option("--network", help="Kind of what joins the nodes, as targets name it.")] = "",
    library: Annotated[Path | None, typer.Option("--library", help="Folder of the topology library.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the topology here, not into the library.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="What is in the library; measure nothing.")] = False,
    shown: Annotated[str | None, typer.Option("--show", help="Show this topology (name or file); measure nothing."
                                              )] = None,
    against: Annotated[str | None, typer.Option("--against", help="Compare with this one (name or file).")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure links, devices and disks, and file the result where plans find it (docs/probe.md)."""
    from dayzero.data.topologies import check_library, library_folder, measured, published, topology

    from .topology_tables import compared_table, topologies_table, topology_table

    _one_thing(listed, shown, {"--ranks": ranks, "--out": out, "--domains": domains, "--disk": disk,
                               "--backend": backend or None, "--network": network or None})
    if listed:
        found = (*measured(library), *published())
        show(lambda: found, lambda: topologies_table(found), as_json)
        return
    other = topology(against, Path(), library) if against is not None else None
    if shown is not None:
        made = topology(shown, Path(), library)
    else:
        wish = _wish(backend, seconds, disk, domains)
        if out is not None:
            refuse_output("--out", out, ())
        else:
            check_library(library_folder(library))
        measured_now = _measured(ranks, wish, network)
        if measured_now is None:  # another rank prints
            return
        made = measured_now
        _file(made, out, library_folder(library))
    show(lambda: made, lambda: compared_table(made, other) if other else topology_table(made), as_json)


def _file(made: Topology, out: Path | None, library: Path) -> None:
    """Write a topology to a file, or into the library, and say where."""
    from dayzero.data.topologies import ENDING, file_topology

    place = file_topology(made, out or library / f"{made.name}{ENDING}")
    sys.stderr.write(f"filed: {place}\n")


def _one_thing(listed: bool, shown: str | None, measuring: dict[str, object]) -> None:
    """Raise UsageError for options that would count for nothing. `measuring`: those that are for measuring."""
    if listed and shown is not None:
        raise UsageError("--list and --show are two things", "give one of them")
    stated = [option for option, value in measuring.items() if value is not None]
    if (listed or shown is not None) and stated:
        raise UsageError(f"{stated[0]} is for measuring, and nothing is measured", f"leave {stated[0]} out")


def _wish(backend: str, seconds: float, disk: Path | None, domains: str | None) -> Wish:
    """What is to be measured. Raises UsageError for a folder that cannot be written and for what are no domains."""
    from dayzero.runtime.probe import Wish

    folder = disk or Path(tempfile.gettempdir())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--disk: {folder} is no folder that files may be written in", "give --disk another folder")
    sizes = [text.strip() for text in (domains or "").split(",") if text.strip()]
    if domains is not None and not (sizes and all(text.isdecimal() and 0 < int(text) < 2**31 for text in sizes)):
        raise UsageError(f"--domains {domains!r} are no numbers of devices", "write --domains like 8,64")
    return Wish(backend=backend, seconds=seconds, disk=str(folder.resolve()), domains=tuple(map(int, sizes)))


def _measured(ranks: int | None, wish: Wish, network: str) -> Topology | None:
    """The topology of this machine, or of all ranks of a launcher; None on ranks that have nothing to tell."""
    from dayzero.runtime.probe import joined, probe, probe_joined

    if joined():
        if ranks is not None:
            raise UsageError("--ranks under torchrun, which has started the ranks", "leave --ranks out")
        return probe_joined(wish, network)
    with drawn_progress() as progress:
        return probe(wish, ranks, network, progress)
