"""Count which kinds of layouts the points have that the shares of rates are fitted to.

    covers.py POINTS.csv RELEASES
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from dayzero.data.efficiency import efficiency
from dayzero.fitting import Models, gather, read_points
from dayzero.schema import Layout
from dayzero.score_layouts import inside, plant
from dayzero.score_serve import Cases


def kinds(layout: Layout, stages: int, node: int) -> list[str]:
    """The kinds that a layout is of."""
    found = {
        "pp": layout.pp > 1 or stages > 1, "cp": layout.cp > 1, "attention_tp": layout.attention_degree != layout.tp,
        "tp over nodes": layout.tp > node, "ep over nodes": layout.ep > 1 and layout.tp * layout.dp > node,
    }  # fmt: skip
    return [name for name, here in found.items() if here]


def main() -> None:
    """Each point counts once for each kind that its prefill or its decode is of."""
    points, releases = Path(sys.argv[1]), [Path(sys.argv[2])]
    sample, rows, known = gather(points, releases, efficiency()), list(read_points(points, "serve")), efficiency()
    cases, counted = Cases(Models(releases), known), Counter[str]()
    for number, case in zip(sample.numbers, sample.cases, strict=True):
        made = plant(rows[number], cases.model(rows[number]), case.device)
        counted.update({kind for layout in (made.decode, made.prefill)
                        for kind in kinds(layout, made.stages, inside(case.device))})
    print(f"points = {len(sample.cases)}")
    for kind, count in sorted(counted.items()):
        print(f'"{kind}" = {count}')


if __name__ == "__main__":
    main()
