"""Ranks are killed while they serve, again and again, in several layouts:
`bench_recovery.py [KILLS] [RELEASE] [LAYOUT...]`.

Every kill is a SIGKILL of a random rank at a random token; every run has to end with the tokens of one process and with
no request lost. Shown is the time from the kill to the next token with a spare, beside that of a full restart: new
processes, weights read again, the same tokens replayed. Both are from the same machine and the same minutes; the ratio
should be 5 or more. One rank is stopped (SIGSTOP) in each layout, which has to be noticed within the stated deadline.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from dayzero.runtime.recovery.controller import Controller
from dayzero.runtime.recovery.job import Job
from dayzero.runtime.recovery.messages import Asked
from dayzero.runtime.recovery.service import Told, served
from dayzero.runtime.recovery.watch import Deadlines
from dayzero.schema import Layout, to_json
from dayzero.schema.store import write_atomic

Tokens = dict[int, tuple[int, ...]]
LAYOUTS = ("tp=2", "pp=2", "pp=3", "tp=2,pp=2", "tp=2,dp=2")
TOKENS, REQUESTS = 32, 4
BEAT = 3.0
ROOT = Path(__file__).parent.parent / "demo" / "SmolLM2-135M"


@dataclass
class Trouble:
    """What happens to a rank."""

    rank: int
    token: int
    signal: int
    when: float = 0.0
    next: float = 0.0


def asked(seed: int) -> list[Asked]:
    """Prompts of 12 to 40 tokens."""
    chance = random.Random(seed)
    return [Asked(number, tuple(chance.randrange(5, 200) for _ in range(chance.randrange(12, 40))), TOKENS)
            for number in range(REQUESTS)]


def controller(folder: Path, layout: Layout, root: Path, spares: int) -> Controller:
    """Started, and waiting."""
    folder.mkdir(parents=True)
    write_atomic(folder / "job.json", to_json(Job(root=str(root))))
    made = Controller(folder, layout, spares=spares, deadlines=Deadlines(beat=BEAT),
                      environment={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    made.start()
    return made


def tokens(one: Controller, requests: Sequence[Asked], told: Told = lambda *_: None) -> Tokens:
    """Of each request."""
    return {each.asked.request: tuple(each.tokens) for each in served(one, requests, told)}


def disturbed(one: Controller, requests: Sequence[Asked], trouble: Trouble) -> Tokens:
    """All requests, with trouble on the way."""
    count = before = 0

    def told(request: int, token: int, finish: str) -> None:
        nonlocal count, before
        count += 1
        if not trouble.when and count == trouble.token:
            trouble.when, before = time.monotonic(), one.epoch
            os.kill(one.members()[trouble.rank].process.pid, trouble.signal)
        elif trouble.when and not trouble.next and one.epoch > before:
            trouble.next = time.monotonic()

    return tokens(one, requests, told)


def restart(folder: Path, layout: Layout, root: Path, requests: Sequence[Asked]) -> float:
    """Seconds of a full restart to the next token."""
    began = time.monotonic()
    one = controller(folder, layout, root, 0)
    first: list[float] = []
    tokens(one, [Asked(each.request, each.tokens, 1) for each in requests],
           lambda request, token, finish: first.append(time.monotonic() - began))
    one.close()
    return first[0]


def many(one: Controller, layout: Layout, kills: int, truth: dict[int, Tokens], chance: random.Random
         ) -> tuple[list[float], int]:
    """(seconds from each kill to the next token, runs that went wrong); at last a rank is stopped."""
    times, wrong = list[float](), 0
    for kill in range(kills + 1):
        stopped, seed = kill == kills, kill % len(truth)
        count = sum(map(len, truth[seed].values()))  # some answers end early
        trouble = Trouble(chance.randrange(layout.world_size), chance.randrange(1, count - 8),
                          signal.SIGSTOP if stopped else signal.SIGKILL)
        while not one.waiting():
            one.turn()
        same = disturbed(one, asked(seed), trouble) == truth[seed]
        wrong += not same or not trouble.next
        took = trouble.next - trouble.when
        if stopped:
            print(f"  stopped rank {trouble.rank}: next token after {took:.2f} s, deadline {BEAT:g} s without a beat")
        else:
            times.append(took)
        if not same:
            print(f"  WRONG: rank {trouble.rank} at token {trouble.token}: other tokens")
    return times, wrong


def phases(one: Controller) -> None:
    """How the time between that a loss was noticed and the next token divides."""
    settled, joined, token = (median(times) for times in zip(
        *((each.settled_s, each.joined_s, each.token_s) for each in one.losses.ranks), strict=True))
    print(f"  since it was noticed: the others had left after {settled:.2f} s, all held their places after "
          f"{joined:.2f} s, the next token was there after {token:.2f} s")


def spread(seconds: Sequence[float]) -> str:
    """Median and range."""
    return f"{median(seconds):.2f} s ({min(seconds):.2f}-{max(seconds):.2f})"


def main(kills: int, root: Path, layouts: Sequence[str]) -> int:
    """Whether anything went wrong."""
    chance, wrong, ratios = random.Random(0), 0, list[float]()
    with tempfile.TemporaryDirectory(prefix="dayzero-recovery-") as folder:
        alone = controller(Path(folder) / "alone", Layout(), root, 0)
        truth = {seed: tokens(alone, asked(seed)) for seed in range(4)}
        alone.close()
        for number, text in enumerate(layouts):
            layout, share = Layout.parse(text), kills * (number + 1) // len(layouts) - kills * number // len(layouts)
            again = [restart(Path(folder) / f"restart-{number}-{each}", layout, root, asked(0)) for each in range(3)]
            one = controller(Path(folder) / f"layout-{number}", layout, root, 1)
            times, bad = many(one, layout, share, truth, chance)
            phases(one)
            one.close()
            wrong += bad
            ratios.append(median(again) / median(times))
            print(f"{text:12} {len(times):3} kills: recovery {spread(times)}, restart {spread(again)}, "
                  f"ratio {ratios[-1]:4.1f}", flush=True)
    print(f"{kills} kills, {wrong} wrong; smallest ratio {min(ratios):.1f} (should be 5 or more)")
    return 1 if wrong else 0


if __name__ == "__main__":
    root = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50, root, sys.argv[3:] or LAYOUTS))
