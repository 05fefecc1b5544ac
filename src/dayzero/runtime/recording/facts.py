"""What a dump says about what was recorded: release, libraries, dtype, device, and the rank's place."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dayzero.runtime.mesh import Place
from dayzero.runtime.versions import digests, versions
from dayzero.schema import Layout
from dayzero.schema.golden import Origin
from dayzero.schema.layout import DEGREES

from .values import DTYPES


def origin(model: Any, *, engine: str, root: Path | None = None, notes: tuple[str, ...] = ()) -> Origin:
    """`root`: folder of the release; None: what the model's config says where it is from."""
    stated = getattr(getattr(model, "config", None), "_name_or_path", "") or ""
    folder = root or (Path(stated) if stated and Path(stated).is_dir() else None)
    first = next(model.parameters(), None)
    counts: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        counts[parameter.dtype] += parameter.numel()
    dtype = counts.most_common(1)[0][0] if counts else torch.float32
    device = str(first.device) if first is not None else "cpu"
    return Origin(
        release=(folder.name if folder else stated) or type(model).__name__, digests=digests(folder), engine=engine,
        libraries=versions(), dtype=DTYPES.get(dtype, str(dtype)), device=device, notes=notes)


def place_of(layout: Layout, rank: int) -> dict[str, int]:
    """Index of a rank for each degree."""
    place = Place(layout, rank)
    return {"tp": place.index, "pp": place.stage, "ep": place.expert, "dp": place.replica, "cp": 0}


def placed(model: nn.Module, layout: Layout | None) -> tuple[Layout, int]:
    """(degrees, global rank) of this process. Where nobody says the degrees they are those of the mesh that a parameter
    is dealt out over, else replicas."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return layout or Layout(), 0
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    if layout is not None:
        return layout.check_world(world), rank
    for parameter in model.parameters():
        mesh: Any = getattr(parameter, "device_mesh", None)
        names = mesh.mesh_dim_names if mesh is not None else None
        if names and all(name in DEGREES for name in names):
            return Layout(**{name: int(mesh.size(axis)) for axis, name in enumerate(names)}).check_world(world), rank
    return Layout(dp=world), rank
