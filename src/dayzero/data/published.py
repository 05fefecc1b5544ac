"""Models that tables of measurements name and that no release at hand describes: published sizes."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path


@cache
def published() -> tuple[Path, ...]:
    """Cards of published models, sorted by name; each states its source."""
    folder = Path(str(files(__package__).joinpath("published")))
    return tuple(sorted(path for path in folder.glob("*.toml") if path.stem != "decoders"))


@cache
def stated_models() -> dict[str, dict[str, int]]:
    """Plain decoders by the letters, digits and dots of their name: hidden, layers, heads."""
    content = tomllib.loads(files(__package__).joinpath("published", "decoders.toml").read_text())
    return {entry["name"]: {key: entry[key] for key in ("hidden", "layers", "heads")}
            for entry in content["decoders"]}
