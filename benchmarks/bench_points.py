"""Serving times that others measured, beside what is predicted, and what another tool predicts for the same rows.

    python benchmarks/bench_points.py POINTS.csv RELEASES_DIR [PEER.csv]

PEER.csv has the columns row, ttft_ms and tpot_ms. For errors with model families and systems left out see
scripts/fit_efficiency.py.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean, median

from dayzero.score import Models, read_points
from dayzero.score_serve import Served, predict_serving

Times = tuple[float | None, float | None]
"""Seconds to the first token, and between tokens."""
Rows = list[dict[str, str]]


def measured(row: Mapping[str, str], ttft: str = "ttft_ms_mean", tpot: str = "tpot_ms_mean") -> Times:
    """What a row states."""
    first, between = (float(row[key]) / 1000 if row[key] not in ("", "nan") else None for key in (ttft, tpot))
    return first, between


def whole(times: Times, row: Mapping[str, str]) -> float | None:
    """Seconds until the last token."""
    first, between = times
    if first is None or between is None or not row["osl"]:
        return None
    return first + between * (float(row["osl"]) - 1)


def line(name: str, pairs: Iterable[tuple[float | None, float | None]]) -> None:
    """Print the errors of (predicted, measured) pairs."""
    off = [predicted / real - 1 for predicted, real in pairs if predicted is not None and real]
    if off:
        sizes = [abs(each) for each in off]
        print(f"{name:34} n {len(off):5}  mean error {mean(sizes):6.1%}  median {median(sizes):6.1%}  "
              f"within 20 % {sum(each <= 0.2 for each in sizes) / len(sizes):4.0%}  bias {mean(off):+.1%}")


def errors(name: str, rows: Rows, made: Mapping[int, Times], kept: Iterable[int]) -> None:
    """Three lines for some rows."""
    chosen = [number for number in kept if number in made]
    for what, part in (("tpot", 1), ("ttft", 0)):
        line(f"{name}: {what}", ((made[i][part], measured(rows[i])[part]) for i in chosen))
    line(f"{name}: end to end", ((whole(made[i], rows[i]), whole(measured(rows[i]), rows[i])) for i in chosen))


def inside(one: Served, row: Mapping[str, str]) -> list[bool]:
    """Whether each interval holds what was measured."""
    return [times[1] <= real <= times[2] for times, real in zip((one.ttft, one.tpot), measured(row), strict=True)
            if times and real]


def main() -> None:
    """Errors over all rows, by kind, device and engine, then beside the other tool's."""
    if len(sys.argv) < 3:
        print("skipped: needs a table of measured points and a folder of releases as arguments")
        return
    rows = read_points(Path(sys.argv[1]), "serve")
    start = time.perf_counter()
    told = list(predict_serving(rows, Models([Path(sys.argv[2])])))
    made: dict[int, Times] = {one.row: (one.ttft[0], one.tpot[0]) for one in told if one.ttft and one.tpot}
    speed = len(rows) / (time.perf_counter() - start)
    print(f"{len(made)} of {len(rows)} rows predicted, {speed:.0f} a second; weights of "
          f"{sum(one.fits is False for one in told)} do not fit")
    errors("all", rows, made, range(len(rows)))
    for column in ("mode", "gpu", "framework"):
        words = [(row[column].split() or ["?"])[0] for row in rows]
        for name in sorted(set(words)):
            errors(f"  {name}", rows, made, (i for i, word in enumerate(words) if word == name))
    held = [each for one, row in zip(told, rows, strict=True) for each in inside(one, row)]
    print(f"intervals hold {sum(held) / len(held):.1%} of {len(held)} measurements")
    if len(sys.argv) > 3:
        with open(sys.argv[3], newline="") as file:
            peer = {int(row["row"]): measured(row, "ttft_ms", "tpot_ms") for row in csv.DictReader(file)}
        peer = {number: times for number, times in peer.items() if times[1] is not None}
        errors("other tool, its rows", rows, peer, sorted(peer))
        errors("dayzero, the same rows", rows, made, sorted(peer))


if __name__ == "__main__":
    main()
