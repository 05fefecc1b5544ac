"""Launch recipes that really ran, checked by preflight: how many are accepted, and which rule refuses the others.

    python benchmarks/bench_recipes.py RECIPES.jsonl RELEASES_DIR [-v]

A line of RECIPES.jsonl has model, gpu, engine, flags. Recipes whose model has no release in RELEASES_DIR, whose device
is not known or whose flags state no layout are counted and left out.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import tomli_w
from recipe_flags import Launch, launches

from dayzero.data.precisions import precision
from dayzero.placement.precision import recast
from dayzero.resolve import resolve_target
from dayzero.schema import Finding, Release
from dayzero.score import Models, known_device
from dayzero.stages.preflight import preflight
from dayzero.stages.read import read

ALIASES = {"dsr1": "deepseek-ai/DeepSeek-R1", "qwen3.5-fp8": "Qwen3.5-397B-A17B-FP8",
           "qwen3.5-fp4": "Qwen3.5-397B-A17B-NVFP4"}
"""Short names of the source of the recipes."""
ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
_RELEASES: dict[Path, Release] = {}


def main() -> None:
    """Check every recipe and print what was refused."""
    if len(sys.argv) < 3:
        print("skipped: needs a list of recipes and a folder of releases as arguments")
        return
    recipes, folder = Path(sys.argv[1]), Path(sys.argv[2])
    models, counted = Models([folder]), Counter[str]()
    for number, line in enumerate(recipes.read_text().splitlines()):
        outcome, reasons = checked(json.loads(line), models)
        counted[outcome] += 1
        if reasons and ("-v" in sys.argv or outcome == "rejected"):
            print(f"{number} {json.loads(line)['model']}: {outcome}")
            for reason in reasons:
                print(f"    {reason}")
    known = counted["accepted"] + counted["rejected"]
    print(", ".join(f"{outcome} {count}" for outcome, count in counted.items()))
    print(f"{counted['rejected']} of {known} known recipes rejected: {100 * counted['rejected'] / max(1, known):.2f} %")


def checked(recipe: dict[str, Any], models: Models) -> tuple[str, list[str]]:
    """(outcome, reasons) of one recipe; every launch has to be accepted, on every device that it names,
    or on one of them where it says `any of`."""
    name = ALIASES.get(recipe["model"], recipe["model"])
    asked_for = re.search(r"--quantization[= ]+(\S+)", str(recipe["flags"]))
    stated = precision(asked_for[1] if asked_for else name) or precision(str(recipe.get("precision") or ""))
    path = models.find(name, stated)
    if path is None:
        return "no release", [name]
    found = [one for one in map(known_device, re.split(r"[/,:]", recipe["gpu"])) if one]
    asked = list(launches(recipe["engine"], recipe["flags"]))
    if not found or not asked:
        return ("no device" if not found else "no layout"), [recipe["gpu"], str(recipe["flags"])[:80]]
    if path not in _RELEASES:
        _RELEASES[path] = read(str(path), metadata_only=True)
    release = _RELEASES[path]
    if stated:
        release = msgspec.structs.replace(release, model=recast(release.model, stated))
    refused = [[f"{device.name} {launch.part} {launch.layout.text}: {finding.rule} {finding.subject}: {finding.message}"
                for launch in asked for finding in errors(release, recipe, device.name, launch)] for device in found]
    accepted = any(not reasons for reasons in refused) if recipe["gpu"].startswith("any of") else not any(refused)
    return ("accepted" if accepted else "rejected"), [reason for reasons in refused for reason in reasons]


def errors(release: Release, recipe: dict[str, Any], device: str, launch: Launch) -> list[Finding]:
    """The errors of preflight for one launch."""
    engine = next((known for name, known in ENGINES.items() if name in recipe["engine"]), None)
    layout = {key: value for key, value in msgspec.structs.asdict(launch.layout).items() if value}
    target = {"cluster": {"device": device, "devices_per_node": launch.layout.world_size,
                          "memory_utilization": launch.utilization or 0.9},
              "layout": layout, "engine": {"name": engine} if engine else {},
              "workload": {"max_batched_tokens": launch.tokens or 8192, "output_tokens": 1,
                           "input_tokens": min(1024, launch.length or 1024)}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "target.toml"
        path.write_text(tomli_w.dumps(target))
        found = preflight(release, resolve_target(path))
    return [finding for finding in found.findings if finding.severity == "error"]


if __name__ == "__main__":
    main()
