"""The manifest of a folder: what is written is what is there."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dayzero.schema import from_json
from dayzero.schema.manifest import MANIFEST, Manifest, manifest_of, save_manifest


def test_a_manifest_states_sizes_and_digests(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{} ")
    digest = hashlib.sha256(b"{} ").hexdigest()
    written = manifest_of(tmp_path, {"config.json": digest}, "made for a test")
    assert save_manifest(tmp_path, written) == tmp_path / MANIFEST
    again = from_json((tmp_path / MANIFEST).read_bytes(), Manifest)
    assert again == written and again.provenance == "made for a test" and not again.headers_only
    assert (again.files["config.json"].size, again.files["config.json"].sha256) == (3, digest)
