"""Planted faults: how many are caught, located and explained, and how many correct runs are called wrong.

Every fault is planted in a small model of one of nine architectures and run; the run is recorded once and the same dump
is judged by `dayzero check compare` and `dayzero check locate`, by a constant relative error of 1e-2, by a cosine of
0.99 (each of them at every module's output, and at the logits alone), and by `mindstudio-probe` where a Python is named
that has it. The same for runs that are right.

    python benchmarks/bench_faults.py [--only REGEX] [--faults N] [--correct N] [--folder DIR] [--msprobe PYTHON]
                                      [--others] [--rows JSON...] [--json FILE] [--page FILE] [-v]

Shares of the suite (`--only`, each in a process and a folder of its own) are put together with `--rows`. `--others`:
dayzero is not asked, which takes most of the time, and the table of the others is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", OMP_NUM_THREADS="2")
sys.path.insert(0, str(Path(__file__).parents[1]))

JUDGES = {"dayzero": "dayzero check compare + locate", "relative": "relative L2 1e-2, every module",
          "relative, logits": "relative L2 1e-2, logits", "cosine": "cosine 0.99, every module",
          "cosine, logits": "cosine 0.99, logits",
          "msprobe": "mindstudio-probe compare, bit for bit the same reference",
          "msprobe, other chip": "mindstudio-probe compare, reference that rounds otherwise"}  # fmt: skip
MARKER = "<!-- written by benchmarks/bench_faults.py -->"
Rows = list[dict[str, Any]]


class Kept(list[dict[str, Any]]):
    """Rows that are written down as they come: of a run that is cut short there is what it had found."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        self._path = path

    def append(self, row: dict[str, Any]) -> None:
        """And write it down."""
        super().append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def spread(found: Sequence[Any], most: int | None) -> list[Any]:
    """So many of them, from all over."""
    return list(found) if most is None or most >= len(found) else [found[n * len(found) // most] for n in range(most)]


def fault_rows(lab: Any, only: str, most: int | None, verbose: bool, keep: Path) -> Rows:
    """What dayzero and the constants say of each fault."""
    from tests.faults.cases import FAULTS
    from tests.faults.judges import by_constants, by_dayzero
    from tests.faults.lab import effect

    rows: Rows = Kept(keep)
    for fault in spread([each for each in FAULTS if re.search(only, f"{each.kind}: {each.name}")], most):
        gradients = fault.gradients is not None
        reference, run = lab.reference(fault.kind, gradients=gradients), lab.faulty(fault)
        noise = lab.noise(fault.kind, fault.precision, gradients=gradients)
        said = {"dayzero": by_dayzero(lab.release(fault.kind), reference, run, noise, gradients=gradients)}
        if not gradients and not fault.layout:
            said |= by_constants(reference, run)
        own = said["dayzero"]
        rows.append({
            "fault": fault.name, "kind": fault.kind, "operator": fault.operator, "precision": fault.precision,
            "layout": fault.layout, "seen": fault.seen, "effect": effect(lab, fault), "run": str(run),
            "seconds": own.seconds, "module": own.module, "words": own.words, "told": own.told,
            "caught": {name: each.caught() for name, each in said.items()},
            "located": {name: each.located(fault) for name, each in said.items()},
            "caused": own.caused(fault)})  # fmt: skip
        _say(f"{fault.kind}: {fault.name}", rows[-1], verbose)
    return rows


def _say(name: str, row: dict[str, Any], verbose: bool) -> None:
    said = {"caught": row["caught"]["dayzero"], "located": row["located"]["dayzero"], "cause": row["caused"]}
    marks = [word if yes else "-" * len(word) for word, yes in said.items()]
    print(f"{name:62} {' '.join(marks)}  {row['module']}", file=sys.stderr, flush=True)
    if verbose:
        print(f"    {row['words']}\n    {row['told']}", file=sys.stderr, flush=True)


def correct_rows(lab: Any, only: str, most: int | None, keep: Path) -> Rows:
    """What dayzero and the constants say of each correct run."""
    from tests.faults.correct import correct_runs
    from tests.faults.judges import by_constants, by_dayzero

    rows: Rows = Kept(keep)
    found = [each for each in correct_runs() if re.search(only, f"{each.kind}: {each.name}")]
    for correct in spread(found, most):
        reference = lab.reference(correct.kind, seed=correct.seed, tokens=correct.tokens)
        noise = lab.noise(correct.kind, correct.precision, seed=correct.seed, tokens=correct.tokens)
        run = lab.right(correct)
        said = {"dayzero": by_dayzero(lab.release(correct.kind, correct.seed), reference, run, noise)}
        if not correct.layout:
            said |= by_constants(reference, run)
        own = said["dayzero"]
        rows.append({"run": str(run), "seed": [correct.seed, correct.tokens], "name": correct.name,
                     "kind": correct.kind, "precision": correct.precision, "layout": correct.layout,
                     "seconds": own.seconds, "told": own.told, "module": own.module, "words": own.words,
                     "alarm": {name: each.alarm for name, each in said.items()}})
        if own.alarm or "compare_error" in own.told or "locate_error" in own.told:
            word = "FALSE ALARM" if own.alarm else "NOT JUDGED"
            print(f"{word} {correct.kind}: {correct.name} {correct.precision}: {own.module} {own.words} {own.told}",
                  file=sys.stderr, flush=True)
    return rows


def others_rows(lab: Any, only: str, most: int | None, count: int | None) -> tuple[Rows, Rows]:
    """(faults, correct runs) as what the constants say of them."""
    from tests.faults.cases import FAULTS
    from tests.faults.correct import correct_runs
    from tests.faults.judges import by_constants

    faults: Rows = []
    correct: Rows = []
    for fault in spread([each for each in FAULTS if re.search(only, f"{each.kind}: {each.name}")], most):
        if fault.gradients is None and not fault.layout:
            run = lab.faulty(fault)
            said = by_constants(lab.reference(fault.kind), run)
            faults.append({"fault": fault.name, "kind": fault.kind, "operator": fault.operator, "layout": "",
                           "precision": fault.precision, "run": str(run),
                           "caught": {name: each.caught() for name, each in said.items()},
                           "located": {name: each.located(fault) for name, each in said.items()}})
    for one in spread([each for each in correct_runs() if re.search(only, f"{each.kind}: {each.name}")], count):
        if not one.layout and (one.seed, one.tokens) == (0, 0):
            run = lab.right(one)
            said = by_constants(lab.reference(one.kind), run)
            correct.append({"name": one.name, "kind": one.kind, "precision": one.precision, "layout": "",
                            "run": str(run), "alarm": {name: each.alarm for name, each in said.items()}})
    return faults, correct


def by_msprobe(python: str, lab: Any, faults: Rows, correct: Rows) -> Rows:
    """[{judge, run, alarm, module}]: the dumps in its format, one after the other in one process of that Python."""
    from tests.faults.cases import FAULTS
    from tests.faults.correct import Correct
    from tests.faults.msprobe_export import export

    planted = {(each.kind, each.name): each for each in FAULTS}
    pairs = []
    for row in [*faults, *correct]:
        if "msprobe" in row.get("caught", row.get("alarm", {})):
            continue
        if row["layout"] or row.get("operator") == "gradient" or row.get("seed", [0, 0]) != [0, 0]:
            continue
        fault = planted.get((row["kind"], row.get("fault", "")))
        same = lab.twin(fault) if fault else lab.right(Correct("base", row["kind"], row["precision"]))
        pairs += [("msprobe", same, row["run"]),
                  ("msprobe, other chip", lab.noise(row["kind"], row["precision"])[1], row["run"])]
    work = []
    for number, (judge, reference, run) in enumerate(pairs):
        target = lab.folder / "msprobe" / str(number)
        export(reference, Path(run), target)
        work.append({"judge": judge, "run": run, "folder": str(target)})
    given, out = lab.folder / "msprobe" / "work.json", lab.folder / "msprobe" / "said.jsonl"
    given.write_text(json.dumps(work))
    script = Path(__file__).parents[1] / "tests" / "faults" / "msprobe_compare.py"
    subprocess.run([python, str(script), str(given), str(out)], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return [json.loads(line) for line in out.read_text().splitlines()]


def taken(files: Iterable[Path]) -> tuple[Rows, Rows, str]:
    """(faults, correct runs, state of the code) of shares that were judged before, in the order of the suite."""
    from tests.faults.cases import FAULTS
    from tests.faults.correct import correct_runs

    read = [json.loads(file.read_text()) for file in files]
    states = sorted({each["state"] for each in read})
    if len(states) != 1:
        raise SystemExit(f"shares are of several states of the code: {', '.join(states)}")
    order = {key: number for number, key in enumerate([(each.kind, each.name) for each in FAULTS])}
    other = {key: number for number, key in enumerate([(each.kind, each.name, each.precision)
                                                       for each in correct_runs()])}
    faults = sorted((row for each in read for row in each["faults"]),
                    key=lambda row: order[row["kind"], row["fault"]])
    correct = sorted((row for each in read for row in each["correct"]),
                     key=lambda row: other[row["kind"], row["name"], row["precision"]])
    return faults, correct, states[0]


def state() -> str:
    """Of the code."""
    said = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude", "*"], capture_output=True, text=True,
                          cwd=Path(__file__).parents[1])
    return said.stdout.strip() or "no repository"


def add_msprobe(said: Rows, faults: Rows, correct: Rows) -> None:
    """Put that judge's words into the rows."""
    from tests.faults.cases import FAULTS

    modules = {(each.kind, each.name): each.modules for each in FAULTS}
    by_run = {row["run"]: row for row in [*faults, *correct]}
    for one in said:
        row = by_run[one["run"]]
        if "alarm" in row:
            row["alarm"][one["judge"]] = one["alarm"]
            continue
        row["caught"][one["judge"]] = one["alarm"]
        row["located"][one["judge"]] = one["alarm"] and any(
            re.fullmatch(each, one["module"]) for each in modules[row["kind"], row["fault"]])


def table(faults: Rows, correct: Rows) -> str:
    """Judges side by side."""
    lines = ["| judge | caught | located | cause | correct runs called wrong |", "|---|---|---|---|---|"]
    for name, words in JUDGES.items():
        ours = [row for row in faults if name in row["caught"]]
        if not ours:
            continue
        right = [row for row in correct if name in row["alarm"]]
        cells = [_share(row["caught"][name] for row in ours),
                 "-" if "logits" in name else _share(row["located"][name] for row in ours),
                 _share(row["caused"] for row in ours) if name == "dayzero" else "-",
                 _share(row["alarm"][name] for row in right) if right else "-"]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(found: Iterable[bool]) -> str:
    every = list(found)
    return f"{sum(every)} of {len(every)} ({sum(every) / len(every):.0%})" if every else "-"


def details(faults: Rows) -> str:
    """Every fault with the size of its effect."""
    lines = ["| architecture | fault | effect on logits | caught | located | cause | 1e-2 | cosine | msprobe |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in faults:
        size = "-" if row["effect"] is None else "NaN" if row["effect"] == float("inf") else f"{row['effect']:.1e}"
        name = row["fault"] + (f" ({row['layout']})" if row["layout"] else "") + (
            f" ({row['precision']})" if row["precision"] != "bf16" and row["operator"] != "gradient" else "")
        marks = [row["caught"]["dayzero"], row["located"]["dayzero"], row["caused"],
                 *(row["caught"].get(each) for each in ("relative", "cosine", "msprobe"))]
        told = ["" if each is None else "yes" if each else "no" for each in marks]
        lines.append(f"| {row['kind']} | {name} | {size} | {' | '.join(told)} |")
    return "\n".join(lines)


def figures(faults: Rows, correct: Rows, of: str) -> str:
    """All that was found, in words and tables. `of`: state of the code."""
    from tests.faults.cases import LATE

    kinds = len({row["kind"] for row in faults})
    small = sum(row["effect"] is not None and row["effect"] < 1e-2 for row in faults)
    late = [row for row in faults if (row["kind"], row["fault"]) in {(each.kind, each.name) for each in LATE}]
    shares = [_share(found) for found in ((row["caught"]["dayzero"] for row in late),
                                          (row["located"]["dayzero"] for row in late), (row["caused"] for row in late))]
    unseen = f"\n\nOf the {len(late)} of `cases/late.py`: caught {shares[0]}, located {shares[1]}, "
    unseen += f"cause {shares[2]}."
    broken, unjudged = (sum(any(name.endswith("_error") for name in row["told"]) for row in rows)
                        for rows in (correct, faults))
    text = f" ({broken} of them dayzero could not judge)" if broken else ""
    text += f"; of {unjudged} faults a command broke off" if unjudged else ""
    return (f"{len(faults)} faults in {kinds} architectures ({small} of them change logits by less than 1e-2), "
            f"{len(correct)} correct runs{text}, all judged by commit {of}.\n\n"
            f"{table(faults, correct)}{unseen if late else ''}\n\n{details(faults)}\n")


def put_into(page: Path, text: str) -> None:
    """Replace what stands behind the page's marker."""
    kept = page.read_text().partition(MARKER)[0] if page.exists() else ""
    page.write_text(f"{kept}{MARKER}\n\n{text}")


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=".", help="regular expression on `architecture: name`")
    parser.add_argument("--faults", type=int, help="at most so many faults")
    parser.add_argument("--correct", type=int, help="at most so many correct runs")
    parser.add_argument("--folder", type=Path, help="where dumps are kept; made ones are taken again")
    parser.add_argument("--others", action="store_true", help="ask the other judges only")
    parser.add_argument("--msprobe", help="a Python that has mindstudio-probe")
    parser.add_argument("--rows", type=Path, nargs="+", help="what --json wrote for shares: nothing is judged again")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("-v", "--verbose", action="store_true")
    given = parser.parse_args()
    if given.others and (given.page or given.rows):
        parser.error("--others prints a table, and writes no page and takes no rows: those are of all judges")
    import torch
    from tests.faults.lab import Lab

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        lab = Lab(folder)
        if given.rows:
            faults, correct, of = taken(given.rows)
        elif given.others:
            of = state()
            faults, correct = others_rows(lab, given.only, given.faults, given.correct)
        else:
            of = state()
            faults = fault_rows(lab, given.only, given.faults, given.verbose, folder / "faults.jsonl")
            correct = correct_rows(lab, given.only, given.correct, folder / "correct.jsonl")
        if given.msprobe:
            add_msprobe(by_msprobe(given.msprobe, lab, faults, correct), faults, correct)
    text = figures(faults, correct, of) if not given.others else table(faults, correct)
    if given.json:
        given.json.write_text(json.dumps({"state": of, "faults": faults, "correct": correct}, indent=1))
    if given.page:
        put_into(given.page, text)
    print(text)


if __name__ == "__main__":
    main()
