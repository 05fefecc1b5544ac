"""Which versions something was made with, and which release. No torch."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = ("dayzero", "torch", "transformers", "tokenizers", "numpy", "safetensors", "lm_eval")
"""Those that decide what is computed."""
FILES = ("config.json", "model.safetensors.index.json", "tokenizer.json")
"""Those that say what a release is."""


def versions() -> dict[str, str]:
    """Library -> version, of Python and of those that are installed."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def digests(folder: Path | None) -> dict[str, str]:
    """SHA-256 of the files that say what a release is, by name."""
    if folder is None:
        return {}
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES
            if (folder / name).is_file()}
