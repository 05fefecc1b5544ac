"""dayzero-manifest.json: what the files of a release folder should be, and how they came to be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .base import Noun, to_json
from .store import write_atomic

MANIFEST = "dayzero-manifest.json"


class ManifestFile(Noun, frozen=True, kw_only=True):
    """What a manifest says of one file."""

    size: int
    """Bytes."""
    sha256: str | None = None
    """SHA-256 in hex; None: not stated."""


class Manifest(Noun, frozen=True, kw_only=True):
    """What the files of a folder should be."""

    files: dict[str, ManifestFile]
    """By name."""
    provenance: str = ""
    """How the weights were made, if they were converted here."""
    headers_only: bool = False
    """Whether the weight files are headers with a hole behind."""
    store: str = ""
    """URL of the folder that the bytes behind these headers are read from when they are needed, where dayzero has
    written it into its own cache; empty: none."""


def manifest_of(folder: Path, digests: Mapping[str, str], provenance: str = "") -> Manifest:
    """The manifest of the files of `folder` whose SHA-256 are `digests`, by name. Raises OSError."""
    files = {name: ManifestFile(size=(folder / name).stat().st_size, sha256=digest) for name, digest in digests.items()}
    return Manifest(files=files, provenance=provenance)


def save_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write the manifest into `folder`; where. Raises StoreError."""
    write_atomic(folder / MANIFEST, to_json(manifest) + b"\n")
    return folder / MANIFEST
