"""Two pipeline stages that serve: `bench_stages.py [RELEASE] [ROUNDS]`.

The same requests on the same two processes, in turns: one lane whose stages wait for each other, one lane that computes
prompts in parts, two lanes that take turns. Shown are tokens a second while decoding and seconds until all prompts are
read, as medians of rounds, and their ratio to the first. The most that there can be is 2; less where two ranks share
cores or memory. Also: a first call of a new prompt length against the next of the same one, which is what new shapes
cost.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent / "demo" / "SmolLM2-135M"
REQUESTS, TOKENS, PROMPT = 6, 12, 96


def main(root: Path, rounds: int) -> None:
    """Start both ranks; the first prints."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
        ranks = [subprocess.Popen([sys.executable, __file__, "rank", str(number), folder, str(root), str(rounds)],
                                  env=environment) for number in range(2)]
        sys.exit(max(rank.wait() for rank in ranks))


def rank_main(number: int, folder: Path, root: Path, rounds: int) -> None:
    """One rank."""
    import torch
    from torch.distributed import FileStore

    from dayzero.runtime.rank import Rank
    from dayzero.runtime.sharding import Mesh
    from dayzero.schema import Layout

    layout = Layout(pp=2)
    torch.set_num_threads(1)
    rank = Rank(root, "f32")
    rank.prepare(layout, number)
    rank.join(Mesh(layout, number).join(FileStore(str(folder / "store"), 2)))
    shapes = [_new_shape(rank, 17 + each) for each in range(12)]
    found: dict[str, list[tuple[float, float]]] = {"waiting": [], "in parts": [], "two lanes": []}
    for turn in range(rounds + 1):
        for name, seen in found.items():
            figures = _served(rank, turn, lanes=2 if name == "two lanes" else 1, parts=1 if name == "waiting" else 2)
            if turn:
                seen.append(figures)
    if number == 0:
        print(f"a call of a new length, over the next of it: median {median(shapes):.2f}")
        for name, seen in found.items():
            print(f"{name}: prompts read in {median(read for read, _ in seen):.2f} s, "
                  f"then {median(rate for _, rate in seen):.1f} tokens/s")
        for name in ("in parts", "two lanes"):
            for what, place, turned in (("prompts", 0, 1), ("decoding", 1, -1)):
                ratios = sorted((one[place] / other[place]) ** turned
                                for one, other in zip(found["waiting"], found[name], strict=True))
                print(f"{what}, {name}: median {median(ratios):.2f} x [{ratios[0]:.2f}-{ratios[-1]:.2f}]")
    rank.leave()


def _new_shape(rank: Any, length: int) -> float:
    import torch

    ids = torch.arange(length)[None] % 100 + 5
    seconds = []
    with torch.no_grad():
        for _ in range(2):
            begun = time.perf_counter()
            rank.model(input_ids=ids, use_cache=False)
            seconds.append(time.perf_counter() - begun)
    return seconds[0] / seconds[1]


def _served(rank: Any, turn: int, *, lanes: int, parts: int) -> tuple[float, float]:
    """(seconds until every request has its first token, tokens a second after that)."""
    from dayzero.runtime.rank_engine import lane
    from dayzero.runtime.serving import Lanes, Request

    chance = random.Random(turn)
    prompts = [tuple(chance.randrange(5, 200) for _ in range(PROMPT)) for _ in range(REQUESTS)]
    lengths = [PROMPT + TOKENS] * REQUESTS
    rank.pipeline.shares_logits = False
    engine = Lanes([lane(rank, lengths, REQUESTS // lanes, (1 << 30) // lanes, parts) for _ in range(lanes)])
    streams = [engine.submit(Request(prompt, TOKENS)) for prompt in prompts]
    begun = time.perf_counter()
    while not all(stream.tokens for stream in streams):
        engine.step()
    read, before = time.perf_counter(), sum(len(stream.tokens) for stream in streams)
    engine.work()
    made = sum(len(stream.tokens) for stream in streams) - before
    return read - begun, made / (time.perf_counter() - read)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
    else:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT, int(sys.argv[2]) if len(sys.argv) > 2 else 5)
