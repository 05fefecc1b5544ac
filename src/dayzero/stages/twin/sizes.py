"""The numbers of a twin: small, and divisible by what divides the release's numbers.

A number x with a modulus m, such as tensor-parallel size x block of the quantisation, becomes a smaller x' with
gcd(x', m) = gcd(x, m): what a split or a block makes of the release, it makes of the twin.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, lcm

from dayzero.data.twin import TwinFacts, twin_facts
from dayzero.errors import UsageError

from .facts import TOWER, Facts

BYTES_OF_TEXT = 256
LEAST = 32
"""No hidden size or width is smaller, unless the release's is."""
PAGE = 64
"""Multiple that engines pad rows of the vocabulary to, and that kernels like of widths."""


def like(size: int, modulus: int, least: int) -> int:
    """The smallest number from `least` on, at most `size`, that divides `modulus` as `size` does."""
    unit = gcd(size, modulus)
    for count in range(max(1, -(-least // unit)), size // unit + 1):
        if gcd(count * unit, modulus) == unit:
            return count * unit
    return size


def free_names(facts: Facts) -> set[str]:
    """Names of the numbers that a twin may change."""
    words = twin_facts()
    heads = {name for group in words.heads for name in group}
    names = {"hidden_size", "vocab_size", "experts", "top_k", *words.cut, *words.uncut, *heads}
    changed = {name for name in names if name in facts.values and facts.values[name] > 0}
    changed |= {name for name in facts.values if name.startswith(TOWER)}
    return changed | {name for name, text in facts.derived.items() if name in facts.values and "hidden_size" in text}


def choose(facts: Facts, blocks: Mapping[str, int], scale: float | None, texts: int | None) -> dict[str, int]:
    """New values of the numbers that config keys state. `blocks`: number -> values that share a scale along an axis of
    that size; `texts`: entries of the vocabulary beside the 256 bytes; None: the vocabulary is kept.

    Raises UsageError for a scale that leaves nothing.
    """
    words = twin_facts()
    target = _target(facts, scale, words)
    chosen = _heads(facts, blocks, words)
    chosen["hidden_size"] = _hidden(facts, chosen, blocks, target)
    chosen |= _widths(facts, chosen["hidden_size"], blocks, words)
    if "experts" in facts.keys:
        chosen |= _experts(facts, words)
    if texts is not None:
        chosen["vocab_size"] = like(facts.values["vocab_size"], words.splits * PAGE, BYTES_OF_TEXT + texts)
    chosen |= _towers(facts, chosen["hidden_size"], words)
    always = {"hidden_size", "vocab_size"}
    return {name: value for name, value in chosen.items() if name in facts.keys or name in always}


def _target(facts: Facts, scale: float | None, words: TwinFacts) -> int:
    hidden = facts.values["hidden_size"]
    if scale is None:
        return min(hidden, words.hidden)
    most = hidden / LEAST
    if not 1 <= scale <= max(1, most):
        raise UsageError(f"--scale {scale:g} cannot be: a hidden size of {hidden} can be made at most {most:g} times "
                         "smaller", f"give a number from 1 to {max(1, most):g}")  # fmt: skip
    return max(1, round(hidden / scale))


def _heads(facts: Facts, blocks: Mapping[str, int], words: TwinFacts) -> dict[str, int]:
    chosen: dict[str, int] = {}
    for group in words.heads:
        counted = [name for name in group if name in facts.keys and name not in chosen and facts.values[name] > 0]
        modulus = words.splits * lcm(*(blocks.get(name, 1) for name in group))
        for name in reversed(counted):  # key/value heads first
            value, shared = facts.values[name], chosen.get(group[-1])
            if name == group[-1] or shared is None or value % facts.values[group[-1]]:
                chosen[name] = _few(value, modulus)
            else:
                chosen[name] = _shared(value, facts.values[group[-1]], shared, modulus)
    return _same_keys(facts, chosen)


def _few(heads: int, modulus: int) -> int:
    return like(heads, modulus, min(heads, 2))


def _shared(heads: int, kv_heads: int, shared: int, modulus: int) -> int:
    """Query heads over `shared` key/value heads; more than one on each where there are more."""
    ratio = heads // kv_heads
    for each in range(min(ratio, 2), ratio + 1):
        if gcd(each * shared, modulus) == gcd(heads, modulus):
            return each * shared
    return ratio * shared


def _same_keys(facts: Facts, chosen: dict[str, int]) -> dict[str, int]:
    """Facts that one key states have one value: the larger."""
    by_key: dict[tuple[str, ...], int] = {}
    for name, value in chosen.items():
        by_key[facts.keys[name]] = max(value, by_key.get(facts.keys[name], 0))
    return {name: by_key[facts.keys[name]] for name in chosen}


def _hidden(facts: Facts, chosen: Mapping[str, int], blocks: Mapping[str, int], target: int) -> int:
    size = facts.values["hidden_size"]
    modulus = lcm(blocks.get("hidden_size", 1), PAGE)
    for name, width in facts.values.items():  # widths that are the hidden size by the same number
        if width == size and name in (*twin_facts().cut, *twin_facts().uncut):
            modulus = lcm(modulus, _modulus(name, blocks))
    if facts.derived.get("head_dim") and "heads" in chosen:
        heads, width = chosen["heads"], facts.values["head_dim"]
        step = gcd(width, 16)
        least, cut = max(1, -(-target // (heads * step))), twin_facts().splits * blocks.get("head_dim", 1)
        pairs = [(facts.values[name], chosen[name]) for name in ("heads", "kv_heads") if name in chosen]
        fits = (count * step for count in range(least, width // step + 1)
                if all(gcd(new * count * step, cut) == gcd(old * width, cut) for old, new in pairs))
        return next((each * heads for each in fits if each * heads % gcd(size, modulus) == 0), heads * width)
    heads = chosen.get("heads", 1) if size % facts.values.get("heads", 1) == 0 else 1
    return next((each for count in range(1, size // heads + 1)
                 if (each := count * heads) >= target and gcd(each, modulus) == gcd(size, modulus)), size)


def _modulus(name: str, blocks: Mapping[str, int]) -> int:
    words = twin_facts()
    if name in words.cut:
        return words.splits * max(blocks.get(name, 1), words.plain_block)
    return lcm(blocks.get(name, 1), PAGE)


def _widths(facts: Facts, hidden: int, blocks: Mapping[str, int], words: TwinFacts) -> dict[str, int]:
    """Widths that are equal in the release stay so; a multiple of the hidden size stays that multiple if it may."""
    size, by_value = facts.values["hidden_size"], dict[int, int]()
    names = [name for name in (*words.cut, *words.uncut) if facts.values.get(name, 0) > 0]
    for value in sorted({facts.values[name] for name in names}):
        modulus = lcm(*(_modulus(name, blocks) for name in names if facts.values[name] == value))
        if value == size:
            by_value[value] = hidden
            continue
        wanted = max(min(value, LEAST), -(-value * hidden // size))
        exact = value * hidden % size == 0 and gcd(wanted, modulus) == gcd(value, modulus)
        by_value[value] = wanted if exact else like(value, modulus, wanted)
    return {name: by_value[facts.values[name]] for name in names if name in facts.keys}


def _experts(facts: Facts, words: TwinFacts) -> dict[str, int]:
    experts, top_k = facts.values["experts"], facts.values.get("top_k", 0)
    groups = max(1, facts.values.get("expert_groups", 1))
    few = like(experts, lcm(words.splits, groups), max(min(experts, words.experts), 2 * groups if groups > 1 else 1))
    chosen = {"experts": few}
    if top_k and few < experts:
        inside = few * facts.values.get("chosen_groups", groups) // groups
        chosen["top_k"] = max(1, min(top_k, few // 2 if groups == 1 else inside))
    return chosen


def _towers(facts: Facts, hidden: int, words: TwinFacts) -> dict[str, int]:
    chosen: dict[str, int] = {}
    for tower in facts.towers:
        name = f"{TOWER}{tower.table}."
        heads = facts.values.get(f"{name}{tower.heads}", 1) if tower.heads else 1
        few = _few(heads, words.splits)
        sizes = sorted({facts.values[name + key] for key in tower.widths})
        shrunk = {facts.values["hidden_size"]: hidden} | _tower_widths(
            [size for size in sizes if size != facts.values["hidden_size"]], heads, few, words)
        if tower.heads:
            chosen[name + tower.heads] = few
        chosen |= {name + key: shrunk[facts.values[name + key]] for key in tower.widths}
    return chosen


def _tower_widths(sizes: list[int], heads: int, few: int, words: TwinFacts) -> dict[int, int]:
    """Width -> smaller width: whole heads stay whole heads, and the widest is a multiple of the others as before."""
    if not sizes:
        return {}
    first, shrunk = sizes[0], dict[int, int]()
    for size in sizes:
        wanted = max(8, size * words.widest_tower // first)
        if size % heads == 0:
            step = few * gcd(size // heads, 8)
            shrunk[size] = min(size, max(step, -(-wanted // step) * step))
        else:
            shrunk[size] = like(size, PAGE, wanted)
        if size % first == 0:
            shrunk[size] = size // first * shrunk[first]
    return shrunk
