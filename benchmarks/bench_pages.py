"""How much of the cache's memory holds nothing that is needed, for all kinds of models and random schedules that fill
it.

    waste = 1 - bytes of tokens and states that sequences still need / bytes given to the cache

So it has everything in it: empty places of blocks, tokens that a window no longer sees, what chunks leave over, and
memory that is free while a request waits because what it needs is not. Mean over the steps in which somebody waits for
memory, and the most of any seed. No model is run: what is held does not depend on what it says. Beside it: bytes that
moved within the memory so that one kind could use another's, over the bytes of new tokens and states.

    python benchmarks/bench_pages.py [--requests 400] [--block 8] [--sequences 100] [--seeds 3]
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dayzero.runtime.pages import ALL, Copied, Done, Freed, Group, Grown, Room, Step, block_tokens, cut
from dayzero.runtime.pages.frames import Frames
from dayzero.runtime.serving import Engine, Request

_FULL, _STATES = Group(ALL), Group(None)
KB, MB = 2**10, 2**20


@dataclass(frozen=True)
class Mix:
    """Bytes of a token in each layer (of a sequence in each state) of a group."""

    name: str
    layers: dict[Group, tuple[int, ...]]


def _linear(layers: int, heads: int, convolution: int, share: int = 1) -> tuple[int, ...]:
    """States of layers with heads of 128 x 128 in fp32 and a convolution of four in bf16; `share`: ranks."""
    return (convolution * 4 * 2 // share, heads * 128 * 128 * 4 // share) * layers


MIXES = (
    Mix("GQA: 32 layers, 8 heads of 128", {_FULL: (4 * KB,) * 32}),
    Mix("latent: 61 layers of 576", {_FULL: (1152,) * 61}),
    Mix("latent and an indexer's keys", {_FULL: (1152, 256) * 61}),
    Mix("window of 128 and full, 1:1", {_FULL: (2 * KB,) * 12, Group(128): (2 * KB,) * 12}),
    Mix("window of 512 and full, 5:1", {_FULL: (KB,) * 4, Group(512): (KB,) * 22}),
    Mix("windows of 128 and 1024 and full",
        {_FULL: (2 * KB,) * 8, Group(128): (2 * KB,) * 24, Group(1024): (1280,) * 8}),
    Mix("linear and full, 3:1", {_FULL: (2 * KB,) * 12, _STATES: _linear(36, 32, 8192)}),
    Mix("linear and latent, 3:1", {_FULL: (1152,) * 7, _STATES: _linear(20, 32, 3 * 4096)}),
    Mix("linear and latent, 3:1, 1/8 of the heads", {_FULL: (1152,) * 24, _STATES: _linear(69, 96, 3 * 12288, 8)}),
    Mix("state space: 64 layers", {_STATES: (10240 * 4 * 2, 128 * 64 * 128 * 4) * 64}),
    Mix("state space and a few full", {_FULL: (2 * KB,) * 6, _STATES: (10240 * 4 * 2, 128 * 64 * 128 * 4) * 23}),
    Mix("both in each layer", {_FULL: (2 * KB,) * 36, _STATES: (3712 * 4 * 2, 24 * 128 * 256 * 4) * 36}),
    Mix("linear, window of 256 and full",
        {_FULL: (2 * KB,) * 8, Group(256): (2 * KB,) * 16, _STATES: _linear(24, 16, 6144)}),
)
LENGTHS = {"chats": (5.86, 0.9, 5.19, 0.7), "long": (7.9, 0.8, 6.0, 0.7), "short": (4.6, 0.6, 4.4, 0.5)}
"""Log-normal: mean and deviation of the logarithm of a prompt's tokens, of an answer's."""


@dataclass
class Found:
    """Of one schedule."""

    waste: float
    moved: float
    running: float
    preempted: int


def lengths(kind: str, count: int, seed: int) -> list[tuple[int, int]]:
    """(prompt, answer) of requests."""
    numbers, (prompt, wide, answer, narrow) = random.Random(seed), LENGTHS[kind]
    return [(min(12000, max(8, int(numbers.lognormvariate(prompt, wide)))),
             min(4000, max(4, int(numbers.lognormvariate(answer, narrow))))) for _ in range(count)]


class Rank:
    """Carries out what a step says about places, and counts what is moved; tokens are always 1."""

    def __init__(self, room: Room, blocks: Sequence[int]) -> None:
        self.frames = Frames(room, self._moved)
        self._blocks, self.moved, self.new = blocks, 0, 0

    def _moved(self, group: int, old: list[int], new: list[int]) -> None:
        self.moved += len(old) * self._blocks[group]

    def run(self, step: Step) -> Done:
        """See Engine."""
        for change in step.changes:
            match change:
                case Grown(_, group, blocks):
                    for block in blocks:
                        self.frames.put(group, block)
                    self.new += len(blocks) * self._blocks[group]
                case Copied(group, _, target):
                    self.frames.put(group, target)
                case Freed(group, blocks):
                    self.frames.drop(group, blocks)
        return Done({row.sequence: 1 for batch in step.batches for row in batch if row.sampling is not None})


def measure(mix: Mix, asked: Sequence[tuple[int, int]], block: int, sequences: int) -> Found:
    """One schedule, in memory for about so many sequences; `block`: tokens of a block, 0: as a run chooses."""
    groups = tuple(mix.layers)
    block = block or block_tokens([prompt + answer for prompt, answer in asked])
    parts = {group: tuple(size * (group.tokens(block) or 1) for size in sizes) for group, sizes in mix.layers.items()}
    # What is there at any time: each request as long as its answer takes, at every length that it has meanwhile.
    expected = [prompt + done for prompt, answer in asked for done in range(0, answer, 16)]
    each = sum(statistics.mean(group.most(tokens, block, block) for tokens in expected) * sum(parts[group])
               for group in groups)
    longest = sum(group.most(max(map(sum, asked)), 512, block) * sum(parts[group]) for group in groups)
    memory = int(max(sequences * each, 1.2 * longest))
    room = cut(parts, memory, block_tokens=block, lengths=expected)
    rank = Rank(room, [sum(parts[group]) for group in groups])
    engine = Engine(rank.run, groups, [room], block_tokens=block, budget=512, most=10_000, share=False,
                    uniform=_STATES in groups)
    for prompt, answer in asked:
        engine.submit(Request(tuple(range(prompt)), answer))
    token = [sum(mix.layers[group]) for group in groups]
    waste, running = [], []
    while engine.step():
        if engine.full:
            needed = sum(count * size for sequence in engine.running
                         for count, size in zip(engine.ledger.needed(sequence.computed), token, strict=True))
            waste.append(1 - needed / memory)
            running.append(len(engine.running))
    return Found(statistics.mean(waste), rank.moved / rank.new, statistics.mean(running), engine.statistics.preempted)


def main() -> None:
    """Print a table for each kind of lengths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("requests", 400), ("block", 0), ("sequences", 100), ("seeds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lengths", choices=list(LENGTHS), nargs="*", default=["chats"])
    given = parser.parse_args()
    for kind in given.lengths:
        print(f"{kind}, memory for about {given.sequences} sequences, blocks of {given.block or 'the usual size'}")
        for mix in MIXES:
            found = [measure(mix, lengths(kind, given.requests, seed), given.block, given.sequences)
                     for seed in range(given.seeds)]
            print(f"  {mix.name:42} waste {statistics.mean(each.waste for each in found):6.2%}, at most "
                  f"{max(each.waste for each in found):6.2%}   "
                  f"moved {statistics.mean(each.moved for each in found):6.1%}   "
                  f"{statistics.mean(each.running for each in found):4.0f} sequences, "
                  f"{sum(each.preempted for each in found)} preempted", flush=True)


if __name__ == "__main__":
    main()
