"""Locating with a release's own code: the same, in a confined process (see runtime/isolation.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dayzero.progress import SILENT, Progress
from dayzero.runtime.isolation import Limits, isolated
from dayzero.schema import Noun, from_json
from dayzero.schema.located import Location


class LocateRequest(Noun, frozen=True, kw_only=True):
    """What to locate."""

    release: str
    """Folder of the release."""
    dump: str = ""
    """Folder of the golden dump; empty: there is none."""
    noise: tuple[str, ...] = ()
    """Dumps of runs that are known to be right."""
    causes: bool = True
    """Whether to look for causes."""
    layers: str = ""
    """Which layers, one at a time; empty: the whole model."""
    dtype: str = "bf16"
    """Precision in which layers run when nothing was recorded."""


def locate_confined(release: Path, dump: Path | None, limits: Limits, *, noise: Sequence[Path] = (),
                    causes: bool = True, layers: str = "", dtype: str = "bf16", progress: Progress = SILENT
                    ) -> Location:
    """`locate` with the release's own code. Raises as `locate` does, and StageError when that code takes more than its
    limits or ends its process."""
    from . import folder_of

    root = folder_of(release)
    dumps = [each.resolve() for each in (*([dump] if dump else []), *noise)]
    request = LocateRequest(release=str(root), dump=str(dump.resolve()) if dump else "", causes=causes, layers=layers,
                            dtype=dtype, noise=tuple(str(each.resolve()) for each in noise))
    linked = [path.resolve() for ending in ("py", "json", "safetensors") for path in root.glob(f"*.{ending}")]
    readable = [root, *linked, *dumps]
    found, _ = isolated(f"{__package__}.child:located", request, Location, whose=f"the code of {root.name}",
                        limits=limits, readable=readable, progress=progress)
    return found


def located(request: bytes, progress: Progress) -> Location:
    """Called in the confined process."""
    from . import locate

    asked = from_json(request, LocateRequest)
    if asked.layers:
        from .layers import locate_layers

        return locate_layers(Path(asked.release), Path(asked.dump) if asked.dump else None, asked.layers,
                             dtype=asked.dtype, own=True, causes=asked.causes, progress=progress)
    return locate(asked.release, asked.dump, noise=asked.noise, own=True, causes=asked.causes, progress=progress)
