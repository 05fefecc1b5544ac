"""twin: a miniature of a release, made from its config and tensor table: the same architecture, names, files and
quantised formats, small sizes, random weights, a tokenizer. It runs where the release cannot."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dayzero.data.vocabulary import vocabulary
from dayzero.errors import NotPossible, ReleaseError
from dayzero.progress import SILENT, Progress
from dayzero.schema import Release
from dayzero.schema.store import refuse_folder, staged_folder
from dayzero.schema.twin import Shrunk, Twin

from .axes import Axes
from .config import changed_numbers, new_ids, put, renamed, rewritten, spelled_otherwise, token_ids, without_predictions
from .facts import get, release_facts
from .layers import choose_layers
from .library import library_modules, library_tensors, unstated_numbers, unstated_towers
from .modules import Module, block_sizes, has_predictions, modules_of
from .sizes import BYTES_OF_TEXT, choose, free_names
from .tokenizer import byte_tokenizer
from .write import INDEX, Values, file_names, tensors_of, write_tensors

__all__ = ["twin"]

TOKENIZER_BYTES = 64 * 2**20
"""Largest embedding with which a release's own tokenizer is kept."""
NEARLY = 0.9
"""Share of a scale that was asked for, below which the difference is told."""
COPIED_BYTES = 8 * 2**20
"""Largest file that is copied as it is."""


def twin(release: Release, out: Path | str, *, layers: int | None = None, scale: float | None = None, seed: int = 0,
         progress: Progress = SILENT) -> Twin:
    """Write a miniature of the release to `out`, which must not exist or be empty, and not lie in the release.

    `layers`: decoder layers (default: the fewest that hold every kind); `scale`: how many times smaller the hidden size
    is (default: about 256 wide). The same seed gives the same bytes. Raises UsageError for `out`, a scale or a number
    of layers that cannot be; ReleaseError for tensors that are stored in a way that is not known; StoreError.
    """
    started, folder = time.perf_counter(), Path(out)
    refuse_folder(folder, (release.root,))
    if not release.config or not release.model.families:
        raise ReleaseError(f"{release.name} says nothing of its tensors", "give a release with its headers, or a card")
    progress.update(f"reading {release.name}")
    made = _Miniature(release, layers, scale)
    values = Values(made.numbers, seed)
    files = tensors_of(made.modules, values)
    names = file_names(release, list(files))
    with staged_folder(folder, sum(tensor.size for each in files.values() for tensor in each)) as temporary:
        made.write_texts(temporary)
        total = write_tensors(temporary, files, names, values, made.index, progress)
    return Twin(name=release.name, origin=release.origin, folder=str(folder), seed=seed, scale=made.scale,
                numbers=made.shrunk(), layers=made.kept.layers, names=made.source, files=len(files),
                tensors=sum(map(len, files.values())), tensor_bytes=total, parameters=made.parameters(),
                seconds=time.perf_counter() - started, notes=tuple(made.notes))


class _Miniature:
    """Everything about a twin but its values."""

    def __init__(self, release: Release, layers: int | None, scale: float | None) -> None:
        self.notes: list[str] = []
        self._estimated = release.model.sources.get("families", "").startswith("estimate")
        self.release = release = self._whole(release) if self._estimated else release
        self.facts = release_facts(release)
        self.kept = choose_layers(release, layers, self.facts.towers)
        self._axes = Axes(self.facts, release.model, free_names(self.facts))
        sample = modules_of(release, self.kept, 1, self._axes)
        ids = token_ids(release.config)
        blocks = block_sizes(sample, self.facts)
        self.chosen = choose(self.facts, blocks, scale, len(ids))
        vocab = self.facts.values["vocab_size"]
        self._bytes = vocab >= BYTES_OF_TEXT + len(ids) and not self._fits_tokenizer()
        if not self._bytes:
            self.chosen.pop("vocab_size", None)
        self.numbers = self.facts.complete(self.chosen)
        new = new_ids(ids, vocab, self.numbers["vocab_size"], BYTES_OF_TEXT)
        self.ids = new if self._bytes else {one: one for one in ids}
        self._id_keys = {self.ids[one]: key for one, key in ids.items() if one < vocab}
        self.config = rewritten(release.config, self.facts, self.chosen, self.kept, self.ids, release.model)
        if scale is not None and self.scale < NEARLY * scale:
            self.notes.append(f"{self.scale:.3g} times narrower, not {scale:g}: smaller sizes would divide otherwise "
                              "than the original's")
        if self._estimated:
            self._add_keys()
        self.source, self.modules = self._named()
        if self._estimated:
            self._leave_out_predictions()
        self._note()

    @property
    def scale(self) -> float:
        """How many times smaller the hidden size is."""
        return self.facts.values["hidden_size"] / self.numbers["hidden_size"]

    @property
    def index(self) -> str:
        """Name of the index."""
        return next((file.name for file in self.release.files if file.role == "index"), INDEX)

    def _fits_tokenizer(self) -> bool:
        """Whether the release's tokenizer is there and its vocabulary small enough beside the other sizes."""
        there = any(file.role == "tokenizer" and file.name == "tokenizer.json" for file in self.release.files)
        tables = 1 if self.release.model.tied_embeddings else 2
        size = self.facts.values["vocab_size"] * self.chosen["hidden_size"] * 2 * tables
        return there and self.release.root is not None and size <= TOKENIZER_BYTES

    def _named(self) -> tuple[str, list[Module]]:
        """Where names are from, and the modules."""
        experts = self.numbers.get("experts", 1)
        own = modules_of(self.release, self.kept, experts, self._axes)
        if not self._estimated:
            return ("headers" if self.release.tensors.files else "card"), own
        try:
            library, tensors = library_tensors(self.config)
        except NotPossible as outcome:
            self.notes.append(f"names of tensors are an estimate: {outcome.reason}")
            return "estimate", own
        return f"library: {library}", library_modules(tensors, own, self.numbers)

    def _whole(self, release: Release) -> Release:
        """The release with the towers that its model has and its config does not state."""
        towers = unstated_towers(release.config)
        if towers:
            self.notes.append(f"{', '.join(towers)}: not in the config, made from the defaults of the library's class")
        return msgspec.structs.replace(release, config={**release.config, **towers})

    def _leave_out_predictions(self) -> None:
        """Prediction layers that the config states and no tensor is of: none are stated."""
        if not self.facts.values.get("mtp_layers") or has_predictions(self.modules, self.kept.count):
            return
        keys = self.facts.keys.get("mtp_layers", ())
        self.config = without_predictions(self.config)
        for key in keys:
            put(self.config, key, 0)
        self.numbers["mtp_layers"] = 0
        self.notes.append(f"{', '.join(keys)} is 0: nothing tells the tensors of the prediction layers")

    def _add_keys(self) -> None:
        """Numbers of towers that the library's class looks for under other keys than the config has."""
        added = spelled_otherwise(unstated_numbers(self.release.config), self.facts, self.chosen, self.kept)
        for key, value in added.items():
            table, _, leaf = key.rpartition(".")
            (self.config[table] if table else self.config)[leaf] = value
        if added:
            self.notes.append(f"keys added, which the library reads in place of the config's: {', '.join(added)}")

    def _note(self) -> None:
        if self.kept.left_out:
            self.notes.append(f"{self.kept.left_out} kinds of layers that differ in their tensors alone are left out")
        if self.source in ("headers", "card"):
            self.notes += [f"{pattern}: {', '.join(map(str, sizes))} kept, nothing in the config explains it"
                           for pattern, sizes in sorted(self._axes.kept.items())]
        if not self._bytes and not any(file.name == "tokenizer.json" for file in self.release.files):
            self.notes.append("no tokenizer: the vocabulary is too small for a token for each byte")
        large = [file.name for file in self.release.files if file.role in ("code", "config", "other")
                 and file.size > COPIED_BYTES]  # fmt: skip
        if large and self.release.root is not None:
            self.notes.append(f"left out, as they are large: {', '.join(large)}")
        if self.release.is_incomplete:
            self.notes.append("shards of the release are missing, and so are their tensors")

    def shrunk(self) -> tuple[Shrunk, ...]:
        """Every number, changed or kept."""
        facts, found = self.facts, []
        flags = vocabulary().config.flags
        for name, value in facts.values.items():
            new = self.kept.count if name == "layers" else self.numbers[name]
            if name not in flags and (name in facts.keys or (value and name in facts.derived)):
                found.append(Shrunk(fact=name, keys=facts.keys.get(name, ()), original=value, twin=new))
        told = {key for number in found for key in number.keys}
        found += [Shrunk(fact=key, keys=(key,), original=old, twin=new)
                  for key, old, new in changed_numbers(self.release.config, self.config) if key not in told]
        return tuple(found)

    def parameters(self) -> int:
        """Logical values of all weights and biases."""
        kinds = Counter(id(module.kind) for module in self.modules)
        return sum(module.kind.parameters(self.numbers) * kinds.pop(id(module.kind), 0) for module in self.modules)

    def write_texts(self, folder: Path) -> None:
        """Config, code, tokenizer and what else lies beside the weights."""
        names = vocabulary().config.files
        config = next((file.name for name in names for file in self.release.files if file.name == name), names[0])
        _write_json(folder / config, self.config)
        for file in self.release.files:
            if file.name != config and self.release.root is not None and not (folder / file.name).exists():
                self._copy(Path(self.release.root, file.name), folder / file.name, file.role)
        text = self._text_config()
        if self._bytes:
            for name, content in byte_tokenizer(self._id_keys, text, self.release.model.max_positions).items():
                (folder / name).write_text(content + "\n")
        generation = folder / "generation_config.json"
        if not generation.exists():
            wanted = ("bos_token_id", "eos_token_id", "pad_token_id")
            _write_json(generation, {key: text[key] for key in wanted if text.get(key) is not None})

    def _text_config(self) -> dict[str, Any]:
        """The config's keys of the language model over those of the whole."""
        inner: dict[str, Any] = next((table for word in vocabulary().config.text
                                      if isinstance(table := get(self.config, word), dict)), {})
        return self.config | {key: value for key, value in inner.items() if value is not None}

    def _copy(self, source: Path, target: Path, role: str) -> None:
        """Code and texts as they are; JSON with the twin's token ids and layers."""
        wanted = role in ("code", "config", "other") or (role == "tokenizer" and not self._bytes)
        if not wanted or source.stat().st_size > COPIED_BYTES or source.name.startswith("dayzero-"):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        content = _json_of(source) if source.suffix == ".json" and role != "tokenizer" else None
        if isinstance(content, dict):
            _write_json(target, renamed(content, self.kept, self.ids))
        else:
            shutil.copyfile(source, target)


def _json_of(path: Path) -> object:
    """The content of a JSON file; None when it is none."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
