"""Runs in the Python that has mindstudio-probe: compares pairs of dumps, and writes what each comparison says.

    python msprobe_compare.py WORK.json OUT.jsonl

WORK.json: [{"judge", "run", "folder"}]. OUT: a line for each: {"judge", "run", "alarm": whether a result is `error` or
`warning`, "error", "module": the first module with such an output in which no other one has it}.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path


def said(folder: Path) -> dict[str, object]:
    """What its compare says of one pair."""
    from msprobe.pytorch.compare.pt_compare import pt_compare

    out = folder / "result"
    pt_compare({"npu_path": str(folder / "target" / "dump.json"), "bench_path": str(folder / "golden" / "dump.json"),
                "stack_json_path": None, "is_print_compare_log": False}, str(out))
    with next(out.glob("*.csv")).open(newline="") as file:
        rows = list(csv.DictReader(file))
    bad = [row for row in rows if row["Result"].strip() in ("error", "warning")]
    named = [row["NPU Name"].split(".Module.forward.")[0].removeprefix("Module.") for row in bad]
    deepest = [name for name in named if not any(each.startswith(f"{name}.") for each in named) and name != "root"]
    first = (deepest or named or [""])[0]
    return {"alarm": bool(bad), "error": any(row["Result"].strip() == "error" for row in bad),
            "module": "" if first == "root" else first, "compared": len(rows)}


def main() -> None:
    """Command line."""
    given, out = map(Path, sys.argv[1:3])
    with out.open("w") as file:
        for each in json.loads(given.read_text()):
            file.write(json.dumps({"judge": each["judge"], "run": each["run"], **said(Path(each["folder"]))}) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
