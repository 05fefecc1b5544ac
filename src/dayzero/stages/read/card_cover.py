"""From tensors to the blocks of a card: which standard blocks explain them, where they differ, and what remains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from dayzero.data.vocabulary import Block, blocks
from dayzero.errors import CardError

from .blocks import KINDS, Architecture, Use, row_tensors, rows_of, standard_uses
from .card import BlockRequest, TensorRequest
from .card_names import NOWHERE, Names, Stored
from .roles import role_of

Options = tuple[str | None, str | None]
"""(format, dtype) of a block."""


@dataclass(frozen=True)
class Match:
    """What a block explains in the layers where it is used."""

    use: Use
    layers: frozenset[int]
    exact: tuple[tuple[str, frozenset[int]], ...]
    """(name, layers) of the tensors that are just as the block has them."""
    without: tuple[str, ...]
    """Its rows that the files do not have, or that another block explains."""

    @cached_property
    def gain(self) -> int:
        """Tensors that it explains, all experts as one."""
        return sum(len(layers) for _, layers in self.exact)

    @property
    def is_shorter(self) -> bool:
        """Whether it says in fewer words what rows of tensors would."""
        return len(self.exact) >= 1 + (len(self.without) + len(self.use.rename)) // 2


@dataclass
class Entry:
    """Rows of a block that have one name, and so are left out together."""

    stored: dict[str, Stored] = field(default_factory=dict)
    """Name -> what the block says about it."""
    fails: bool = False
    """Whether a fact is missing that its sizes depend on."""


class Cover:
    """Explains tensors by blocks, block by block; `left` is what is not explained yet."""

    def __init__(self, architecture: Architecture, names: Names) -> None:
        self.architecture = architecture
        self.names = names
        self.left = {name: set(layers) for name, layers in names.items()}
        self.requests: list[BlockRequest] = []
        self.prefix = ""
        self._places = _places(names)
        self._entries: dict[tuple[object, ...], dict[str, Entry]] = {}
        self._unstated: set[int] = set()  # rows whose sizes depend on a fact that is missing

    def run(self) -> tuple[list[BlockRequest], list[TensorRequest]]:
        """The blocks, and a row for all other tensors."""
        self.prefix = max(self._prefixes(), key=self._gain)
        self._take_standard()
        while (best := max(self._others(), key=lambda match: match.gain, default=None)) is not None:
            self._take(best)
            self.requests.append(self._request(best))
        return self.requests, list(self._rest())

    def _take(self, match: Match) -> None:
        """What the block writes over is to be explained again, but for what it explains itself."""
        for row, entry in self._entries_of(match.use).items():
            for name in entry.stored if row not in match.without else ():
                self.left[name] |= match.layers
        for name, layers in match.exact:
            self.left[name] -= layers

    # The blocks that the config asks for, in their places.

    def _prefixes(self) -> list[str]:
        """What could stand in front of all names: what does in front of the names of standard blocks."""
        ends = [f"{block.at}{block.tensors[0].name}{block.tensors[0].param}" for block in blocks().blocks.values()]
        found = Counter(name[: -len(end)] for name in self.names for end in ends if name.endswith(end))
        return ["", *(prefix for prefix, _ in found.most_common(8) if prefix)]

    def _gain(self, prefix: str) -> int:
        """Tensors that standard blocks explain with that in front of all names."""
        return sum(next(iter(fits.values())).gain for fits in self._standard(prefix))

    def _standard(self, prefix: str) -> list[dict[Options, Match]]:
        """Standard blocks that all of their layers have, in the formats and dtypes in which they explain most."""
        found = []
        for _, use in standard_uses(self.architecture):
            fits: dict[Options, Match] = {}
            for options in self._options:
                placed = replace(use, at=prefix + use.at, format=options[0], dtype=options[1])
                match = self._match(placed, frozenset(use.layers or (NOWHERE,)))
                if match is not None and not match.without and 2 * len(match.exact) >= self._size(placed):
                    fits[options] = match
            most = max((match.gain for match in fits.values()), default=0)
            best = {options: match for options, match in fits.items() if match.gain == most}
            if best:
                found.append(best)
        return found

    def _take_standard(self) -> None:
        """One request for all standard blocks of the commonest format; it is not made for a single one."""
        found = self._standard(self.prefix)
        votes = Counter(options for fits in found for options in fits if len(fits) < len(self._options))
        common = max(self._options, key=lambda options: (votes[options], -self._options.index(options)))
        chosen = [fits[common] for fits in found if common in fits]
        if len(chosen) < 2:
            return
        uses = {id(match.use.block) for match in chosen}
        without = [name for name, use in standard_uses(self.architecture) if id(use.block) not in uses]
        for match in chosen:
            self._take(match)
        self.requests.append(BlockRequest(use="standard", without=without, format=common[0], dtype=common[1]))

    # All blocks, wherever they are.

    def _others(self) -> Iterator[Match]:
        """Ways to explain what is left by one further block, of kinds that some layer has."""
        open_names = {name for name, layers in self.left.items() if layers}
        for block in blocks().blocks.values():
            known = not block.layers or self.architecture.layers(block.layers)
            for use in self._candidates(block, open_names) if known else ():
                for options in self._options:
                    yield from self._by_layers(replace(use, format=options[0], dtype=options[1]))

    def _by_layers(self, use: Use) -> Iterator[Match]:
        """The block in the layers that lack the same of its rows."""
        entries = self._entries_of(use)
        everywhere = {layer for entry in entries.values() for name in entry.stored for layer in self.left.get(name, ())}
        alike: dict[tuple[str, ...], set[int]] = {}
        for layer in sorted(everywhere):
            lacking = tuple(name for name, entry in entries.items() if not self._has(entry, layer))
            alike.setdefault(lacking, set()).add(layer)
        for lacking, layers in alike.items():
            if len(lacking) < len(entries):
                match = self._match(replace(use, without=lacking), frozenset(layers))
                if match is not None and match.is_shorter and match.gain:
                    yield match

    def _candidates(self, block: Block, names: set[str]) -> Iterator[Use]:
        """Places where a block could be: where weights of the roles of its rows are, under these names or others."""
        found: dict[str, dict[str, list[str]]] = {}
        for row in rows_of(Use(block, (), ""), self.architecture):
            segments = row.name.split(".")
            for module, sample in self._places.get(_role(block.at + row.name + row.param), {}).items():
                parts = module.split(".")
                at, own = ".".join(parts[: -len(segments)]), parts[-len(segments) :]
                marks = [(part == "{E}") for part in own] == [(part == "{E}") for part in segments]
                fits = len(own) == len(segments) and marks and ("{L}" in at) == bool(block.layers)
                if fits and f"{at}.".startswith(self.prefix) and sample & names:
                    found.setdefault(f"{at}." if at else "", {}).setdefault(row.name, []).append(".".join(own))
        for at, rows in found.items():
            yield Use(block=block, layers=(0,) if block.layers else (), at=at, rename=_renamed(rows))

    # How well a use fits.

    def _match(self, use: Use, layers: frozenset[int]) -> Match | None:
        """What the use explains in these layers; None: nothing."""
        exact: list[tuple[str, frozenset[int]]] = []
        lacking = []
        for row, entry in self._entries_of(use).items():
            if not all(self._has(entry, layer) for layer in layers):
                lacking.append(row)
                continue
            same = frozenset(layer for layer in layers if self._is_exact(entry, layer))
            exact += [(name, same) for name in entry.stored if same]
        return Match(use, layers, tuple(exact), (*use.without, *lacking)) if exact else None

    def _has(self, entry: Entry, layer: int) -> bool:
        """Whether all of a row is there in the layer, in the same shapes: a row of [[tensors]] may only give another
        dtype."""
        return not entry.fails and all(layer in self.left.get(name, ()) and self.names[name][layer].shape == own.shape
                                       for name, own in entry.stored.items())

    def _is_exact(self, entry: Entry, layer: int) -> bool:
        return all(self.names[name][layer] == stored for name, stored in entry.stored.items())

    def _size(self, use: Use) -> int:
        return sum(len(entry.stored) for entry in self._entries_of(use).values())

    def _entries_of(self, use: Use) -> dict[str, Entry]:
        key = (id(use.block), use.at, use.format, use.dtype, tuple(use.rename.items()), tuple(use.without))
        if key not in self._entries:
            self._entries[key] = self._evaluated(use)
        return self._entries[key]

    def _evaluated(self, use: Use) -> dict[str, Entry]:
        one = replace(use, layers=(0,) if "{L}" in use.at else ())
        entries: dict[str, Entry] = {}
        for row in rows_of(one, self.architecture):
            entry = entries.setdefault(row.name, Entry())
            if id(row) in self._unstated:
                entry.fails = True
                continue
            try:
                for name, shape, dtype, _, experts in row_tensors(row, one, self.architecture):
                    entry.stored[name] = Stored(tuple(shape), dtype, experts)
            except CardError:
                entry.fails = True
                self._unstated.add(id(row))
        return entries

    @cached_property
    def _options(self) -> list[Options]:
        """Formats of which the files have all parts, and dtypes of plain matrices."""
        formats = [name for name, form in blocks().formats.items()
                   if all(any(tensor.endswith(end) for tensor in self.names) for end in form.parts)
                   and any(stored.dtype == dtype for dtype, _ in form.parts.values()
                           for layers in self.names.values() for stored in layers.values())]
        plain = Counter(stored.dtype for layers in self.names.values() for stored in layers.values())
        dtypes = [dtype for dtype, _ in plain.most_common(3) if dtype != self.architecture.dtype]
        return list(product((None, *formats), (None, *dtypes)))

    # In words.

    def _request(self, match: Match) -> BlockRequest:
        use = match.use
        name = next(name for name, block in blocks().blocks.items() if block is use.block)
        usual = self.architecture.layers(use.block.layers)
        layers = tuple(sorted(match.layers - {NOWHERE}))
        return BlockRequest(
            use=name, layers=None if layers == usual else layers_text(layers, self.architecture),
            at=None if use.at == self.prefix + use.block.at else use.at.removeprefix(self.prefix),
            rename=dict(use.rename), without=list(match.without), format=use.format, dtype=use.dtype)  # fmt: skip

    def _rest(self) -> Iterator[TensorRequest]:
        """A row for all tensors of one name, shape and dtype that no block explains."""
        for name, layers in self.left.items():
            alike: dict[Stored, list[int]] = {}
            for layer in sorted(layers):
                alike.setdefault(self.names[name][layer], []).append(layer)
            for (shape, dtype, experts), where in alike.items():
                yield TensorRequest(
                    name=name, shape=list(shape), dtype=None if dtype == self.architecture.dtype else dtype,
                    layers="" if where == [NOWHERE] else self._words(name, where), experts=experts)  # fmt: skip

    def _words(self, name: str, layers: list[int]) -> str:
        """Layers of tensors of that name; those of a tower are not the decoder's."""
        return "+".join(_ranges(layers)) if role_of(name).in_tower else layers_text(layers, self.architecture)


def layers_text(layers: Sequence[int], architecture: Architecture) -> str:
    """Layers in few words: kinds, numbers and ranges joined by `+`; kinds where they take at most one word more."""
    wanted = set(layers)
    kinds = {kind: set(architecture.layers(kind)) for kind in KINDS}
    inside = sorted((kind for kind, own in kinds.items() if own and own <= wanted), key=lambda kind: -len(kinds[kind]))
    chosen: list[str] = []
    for kind in inside:
        if kinds[kind] & wanted:
            chosen.append(kind)
            wanted -= kinds[kind]
    words = [*chosen, *_numbers(sorted(wanted), architecture)]
    numbers = _numbers(layers, architecture)
    return "+".join(words if len(words) <= len(numbers) + 1 else numbers)


def _numbers(layers: Sequence[int], architecture: Architecture) -> list[str]:
    """Numbers and ranges; layers behind those that are stated one by one."""
    last = architecture.stated_layers
    return _ranges([layer for layer in layers if layer < last]) + [str(layer) for layer in layers if layer >= last]


def _ranges(layers: Sequence[int]) -> list[str]:
    """`0-2`, `5`"""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return [f"{first}-{last}" if first < last else f"{first}" for first, last in runs]


def _role(pattern: str) -> str:
    return role_of(pattern).name.removeprefix("mtp.")


def _places(names: Names) -> dict[str, dict[str, set[str]]]:
    """Role -> modules whose tensors have it, each with their names."""
    places: dict[str, dict[str, set[str]]] = {}
    for name in names:
        role = role_of(name)
        if not role.in_tower:
            places.setdefault(role.name.removeprefix("mtp."), {}).setdefault(role.stem, set()).add(name)
    return places


def _renamed(rows: dict[str, list[str]]) -> dict[str, str]:
    """Segments that are spelled otherwise, from the modules that each row could be. What is not clear, as several rows
    could be one module or one row several, stays as it is."""
    renamed: dict[str, str] = {}
    meant = Counter(module for modules in rows.values() for module in {*modules})
    for row, modules in rows.items():
        other = dict(zip(row.split("."), modules[0].split("."), strict=True))
        clear = len({*modules}) == 1 and meant[modules[0]] == 1
        if clear and not any(renamed.get(one, two) != two for one, two in other.items()):
            renamed.update(other)
    return {one: two for one, two in renamed.items() if one != two}
