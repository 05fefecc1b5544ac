"""Memory that engines reported, beside what is predicted: weights on a device, tokens of cache, whether it starts.

    python benchmarks/bench_memory.py POINTS.csv RELEASES_DIR [RELEASES_DIR2 ...]
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean

from dayzero.score import Models, predict_memory, read_points


def main() -> None:
    """One line for each point that has a release, then the errors."""
    if len(sys.argv) < 3:
        print("skipped: needs a table of measured points and folders of releases as arguments")
        return
    rows = read_points(Path(sys.argv[1]))
    weights, tokens, labels, open_ = [], [], [], 0
    for one, row in zip(predict_memory(rows, Models([Path(folder) for folder in sys.argv[2:]])), rows, strict=True):
        if one.weights is None:
            continue
        print(f"{one.row} {row['model']} {row['gpu']} {row['framework']}: weights {one.weights:.2f} GiB "
              f"({row['weights_gib_per_gpu'] or '?'}), cache {one.tokens} tokens ({row['kv_cache_tokens'] or '?'}), "
              f"fits {one.fits} (oom {row['oom'] or '?'}) {one.reason}")
        if row["weights_gib_per_gpu"]:
            weights.append(one.weights / float(row["weights_gib_per_gpu"]) - 1)
        if row["kv_cache_tokens"] and one.tokens is not None:
            tokens.append(one.tokens / float(row["kv_cache_tokens"]) - 1)
        if row["oom"] in ("True", "False") and one.fits is not None:
            labels.append((one.fits, row["oom"] == "False"))
        open_ += one.fits is None and "beside" in one.reason
    for name, errors in (("weights", weights), ("cache tokens", tokens)):
        if errors:
            sizes = [abs(error) for error in errors]
            print(f"{name}: {len(errors)} points, mean error {mean(sizes):.1%}, worst {max(sizes):.1%}")
    print(f"starts: {sum(a == b for a, b in labels)} of {len(labels)} right, "
          f"false fits {sum(a > b for a, b in labels)}, false OOM {sum(a < b for a, b in labels)}; "
          f"{open_} more depend on what is only known between bounds")


if __name__ == "__main__":
    main()
