"""manifest.json: what is in the bundle, what it was made from, and digests of both."""

from __future__ import annotations

import hashlib

import msgspec

from dayzero import __version__
from dayzero.schema import Release, Target, Verdict, digest, to_json


def manifest(release: Release, target: Target, files: dict[str, str], what: dict[str, str],
             verdict: Verdict | None) -> str:
    """Text of manifest.json for the files of a bundle, without itself. `what`: path -> what the file is."""
    document = {
        "dayzero": __version__,
        "release": {
            "name": release.name,
            "origin": release.origin,
            "sha256_of_config_and_tensor_table": digest([release.config, release.tensors]),
            "weight_files": {entry.name: {"bytes": entry.size, "sha256": entry.sha256 or entry.expected_sha256}
                             for entry in release.files if entry.role == "weights"},
        },
        "target": {"name": target.name, "sha256": digest(target)},
        "checks": None if verdict is None else {
            "passed": verdict.passed, "proven": verdict.proven, "reference": verdict.reference,
            "comparisons": len(verdict.checks),
            "failed": [check.name for check in verdict.checks if not check.passed], "not_made": verdict.not_made},
        "files": {name: {"what": what[name], "bytes": len(text.encode()),
                         "sha256": hashlib.sha256(text.encode()).hexdigest()} for name, text in files.items()},
    }  # fmt: skip
    return msgspec.json.format(to_json(document), indent=2).decode() + "\n"
