"""Parameters as they are read from releases, beside the figures that are published.

    python benchmarks/bench_facts.py FACTS.csv RELEASES

FACTS.csv: columns model, total_params_b, active_params_b, computed_total_b, in billions; a cell may hold several
figures that disagree. RELEASES: folders `org__name`. A release is right when its total is within 0.5 % of one of them.
Exit status 1 if one is not, or cannot be read.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from dayzero.errors import DayzeroError
from dayzero.schema import ModelSpec
from dayzero.stages.read import read

LIMIT = 0.005
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*[TB]\b)(?!\w)")


def figures(cell: str) -> list[float]:
    """All figures of a cell, in billions; text in it is left out."""
    return [float(text) for text in NUMBER.findall(cell) if float(text) > 0]


def totals(row: Mapping[str, str]) -> list[float]:
    """The figures of a model's total; smaller ones are about a part of it."""
    stated = [*figures(row["computed_total_b"]), *figures(row["total_params_b"])]
    return [figure for figure in stated if 2 * figure > max(stated)]


def readings(model: ModelSpec) -> dict[str, float]:
    """What may be called the total, in billions."""
    mtp = sum(family.parameters for family in model.families if family.role.startswith("mtp."))
    return {"all": model.parameters / 1e9, "text": model.parameters_text / 1e9,
            "text without mtp": (model.parameters_text - mtp) / 1e9}  # fmt: skip


def nearest(model: ModelSpec, stated: list[float]) -> tuple[float, str, float]:
    """(error, what is compared, figure) of the pair that is nearest."""
    pairs = [((value - figure) / figure, name, figure) for name, value in readings(model).items() for figure in stated]
    return min(pairs, key=lambda pair: abs(pair[0]))


def released(name: str, folders: Path) -> Iterator[Path]:
    """The releases of a model: its folder, or those whose names begin alike (a release name may say more)."""
    exact = folders / name.replace("/", "__")
    end = name.partition("/")[2].removesuffix("-2512")
    yield from [exact] if exact.is_dir() else sorted(
        folder for folder in folders.iterdir() if folder.is_dir() and end.lower() in folder.name.lower())  # fmt: skip


def compared(row: Mapping[str, str], folder: Path) -> tuple[bool, str]:
    """Whether a release is right, and its line."""
    try:
        model = read(folder, metadata_only=True).model
    except DayzeroError as error:
        return False, f"{folder.name:48s} cannot be read: {error.message}"
    stated = totals(row)
    error, what, figure = nearest(model, stated)
    apart = max(stated) / min(stated) - 1
    active = ", ".join(f"{value / 1e9:.2f}" for value in model.parameters_active.values())
    line = (f"{folder.name:48s} {model.parameters / 1e9:9.3f} text {model.parameters_text / 1e9:9.3f}  "
            f"{error:+7.3%} ({what} beside {figure:g})  active {active} beside {row['active_params_b'].split(' (')[0]}")
    if apart > LIMIT:
        line += f"; published figures are {apart:.1%} apart: {', '.join(f'{one:g}' for one in stated)}"
    return abs(error) <= LIMIT, line


def main() -> int:
    """All models of the table."""
    if len(sys.argv) != 3:
        print("skipped: needs FACTS.csv and a folder of releases as arguments")
        return 0
    rows, folders = list(csv.DictReader(Path(sys.argv[1]).read_text().splitlines())), Path(sys.argv[2])
    print("active: all, without the input embedding, without embedding and head")
    wrong = seen = 0
    for row in rows:
        found = list(released(row["model"], folders))
        if not found or not totals(row):
            print(f"{row['model']:48s} {'has no release here' if not found else 'states no figure'}")
        for folder in found if totals(row) else ():
            right, line = compared(row, folder)
            seen, wrong = seen + 1, wrong + (not right)
            print(line if right else f"{line}  <- wrong")
    unread = 0
    for folder in sorted(folders.iterdir()):
        try:
            read(folder, metadata_only=True)
        except DayzeroError as error:
            unread += 1
            print(f"{folder.name}: cannot be read: {error.message}")
    print(f"{seen - wrong} of {seen} releases within {LIMIT:.1%}; {unread} of {len(list(folders.iterdir()))} "
          "cannot be read")
    return int(bool(wrong or unread))


if __name__ == "__main__":
    sys.exit(main())
