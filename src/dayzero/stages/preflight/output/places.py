"""Where in the files of a release, or in the target, a finding is: the line of a config key, the shard of a tensor."""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dayzero.data.keys import language_tables
from dayzero.schema import Finding, Release, Target, TensorGroup

_LIMIT = 16 * 2**20
"""Most bytes that are read to find a line."""
_STRING = r'"(?:[^"\\]|\\.)*+"'
_TOKEN = re.compile(rf"(?P<key>{_STRING})\s*:|(?P<text>{_STRING})|(?P<open>[{{\[])|(?P<close>[}}\]])", re.DOTALL)
_NUMBERS, _MOST_NUMBERS = re.compile(r"(?<![^.])[0-9]{1,18}(?![^.])"), 6
_HEADER = re.compile(r"^\s*\[{1,2}\s*([\w.]+)\s*\]{1,2}", re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """A line of a file."""

    file: str
    """Name in the release, or path of the target; empty: nothing nearer than the release is known."""
    line: int = 1
    """From 1; 1 too where no line is meant."""
    of_target: bool = False
    """Whether it is the target's file."""


@dataclass(frozen=True)
class JsonLines:
    """On which lines of a JSON text its keys and its texts are."""

    keys: dict[str, int]
    """Dotted path of a key -> its first line."""
    texts: dict[str, int]
    """A text among the values, as it is written -> its first line."""

    @classmethod
    def of(cls, text: str) -> JsonLines:
        """What a text holds; a text that is no JSON gives something too."""
        ends = [match.start() for match in re.finditer("\n", text)]
        found, key, open_keys = cls({}, {}), "", list[str]()
        for token in _TOKEN.finditer(text):
            line = bisect.bisect_left(ends, token.start()) + 1
            if token["key"]:
                key = token["key"][1:-1]
                found.keys.setdefault(".".join([*filter(None, open_keys), key]), line)
            elif token["text"]:
                found.texts.setdefault(token["text"][1:-1], line)
            elif token["open"]:
                open_keys.append(key)
            elif open_keys:
                open_keys.pop()
            key = key if token["key"] else ""
        return found


class Places:
    """Finds the place of each finding about one release on one target."""

    def __init__(self, release: Release, target: Target, target_file: Path) -> None:
        self.release = release
        self.target = target
        self.target_file = target_file
        self.files = {file.name: file.role for file in release.files}

    def of(self, finding: Finding) -> Place:
        """The nearest place that is known."""
        subject = finding.subject.partition(" (")[0].partition(" + ")[0]
        return (self._layout(finding) or self._waiver(finding) or self._file(subject) or self._key(subject)
                or self._tensor(subject) or self._entry(subject) or self._file(str(finding.facts.get("file", "")))
                or self._stated(subject) or self._kind(finding.rule))

    def _layout(self, finding: Finding) -> Place | None:
        """The table of the layout that it is about, where the target asks for that one."""
        asked = [layout.text for layout in self.target.layouts]
        if finding.facts.get("layout") not in asked:
            return None
        return self._table("layout", asked.index(finding.facts["layout"]))

    def _waiver(self, finding: Finding) -> Place | None:
        if not finding.rule.startswith("waiver-"):
            return None
        names = [each.rule if each.subject == "*" else f"{each.rule}: {each.subject}" for each in self.target.waivers]
        return self._table("waivers", names.index(finding.subject) if finding.subject in names else 0)

    def _file(self, subject: str) -> Place | None:
        name, _, line = subject.partition(":")
        if name in self.files:
            return Place(name, int(line) if re.fullmatch("[0-9]{1,9}", line) else 1)
        return None

    def _key(self, subject: str) -> Place | None:
        """The key in a config: in the language model's tables if they have it, else wherever it is."""
        tables = [path for path, _ in language_tables(self.release.config)]
        for file, lines in self._configs.items():
            paths = [f"{table}{subject}" for table in tables]
            paths += [path for path in lines.keys if path.endswith(f".{subject}")]
            for path in paths:
                if path in lines.keys:
                    return Place(file, lines.keys[path])
        return None

    def _entry(self, subject: str) -> Place | None:
        """An entry of a list in a config."""
        return next((Place(file, lines.texts[subject]) for file, lines in self._configs.items()
                     if subject in lines.texts), None)

    def _tensor(self, subject: str) -> Place | None:
        """The shard of a tensor, of the first one of a pattern, or of the first one of a module."""
        for pattern, layer, expert in _readings(subject):
            for group in self._groups.get(pattern, ()):
                named = (group.layer.values == layer) & (group.expert.values == expert)
                row = 0 if pattern == subject else int(named.argmax())
                if (pattern == subject or named[row]) and int(group.file.values[row]) >= 0:
                    return Place(self.release.tensors.files[int(group.file.values[row])])
        return None

    def _stated(self, subject: str) -> Place | None:
        """A line of the target that states the subject, or the table of that name."""
        for number, line in enumerate(self._target_text.splitlines(), 1):
            if subject and (f'"{subject}"' in line or f"'{subject}'" in line or line.split("=")[0].strip() == subject):
                return Place(str(self.target_file), number, of_target=True)
        return self._table(subject, 0) if subject in _HEADER.findall(self._target_text) else None

    def _kind(self, rule: str) -> Place:
        """What findings of this kind are mostly about."""
        if rule.startswith(("memory-", "pipeline-")):
            return self._table("cluster", 0)
        if rule.startswith(("engine-", "kv-")):
            return self._table("engine", 0)
        index = next((name for name, role in self.files.items() if role == "index"), "")
        if rule.startswith(("weights-", "file-", "scale-")) and index:
            return Place(index)
        about_quant = rule.startswith(("quant-", "fp8-")) and self._key("quantization_config")
        return about_quant or Place(next(iter(self._configs), ""))

    def _table(self, name: str, number: int) -> Place:
        """The line of the target's n-th table of that name, or of its first line."""
        lines = [self._target_text.count("\n", 0, match.start(1)) + 1 for match in _HEADER.finditer(self._target_text)
                 if match[1] == name]
        return Place(str(self.target_file), lines[min(number, len(lines) - 1)] if lines else 1, of_target=True)

    @cached_property
    def _groups(self) -> dict[str, list[TensorGroup]]:
        """The tensors, by their patterns and by those of their modules."""
        found: dict[str, list[TensorGroup]] = defaultdict(list)
        for group in self.release.tensors.groups:
            for name in (group.pattern, group.pattern.rpartition(".")[0]):
                found[name].append(group)
        return found

    @cached_property
    def _configs(self) -> dict[str, JsonLines]:
        """The files of keys and values, that of the model first."""
        root, names = self.release.root, [name for name, role in self.files.items() if role == "config"]
        return {name: JsonLines.of(_text(Path(root, name))) for name in sorted(names, key=len) if root}

    @cached_property
    def _target_text(self) -> str:
        return _text(self.target_file)


def _readings(subject: str) -> Iterator[tuple[str, int, int]]:
    """(pattern, layer, expert) of all that a subject may name: itself, or with one of its numbers as the layer, one as
    the expert, or both; -1: none."""
    yield subject, -1, -1
    numbers = list(_NUMBERS.finditer(subject))[:_MOST_NUMBERS]
    for layer in (*numbers, None):
        for expert in (*numbers, None):
            chosen = {match.start(): (match, mark) for match, mark in ((layer, "{L}"), (expert, "{E}")) if match}
            pattern = subject
            for start, (match, mark) in sorted(chosen.items(), reverse=True):
                pattern = f"{pattern[:start]}{mark}{pattern[match.end():]}"
            if chosen and layer is not expert:
                yield pattern, int(layer[0]) if layer else -1, int(expert[0]) if expert else -1


def _text(path: Path) -> str:
    """The start of a file as text; empty when it cannot be read: a line is a help, not a need."""
    try:
        with path.open("rb") as file:
            return file.read(_LIMIT).decode(errors="replace")
    except OSError:
        return ""
