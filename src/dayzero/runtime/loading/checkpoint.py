"""A release's weights as the tensors of a model: whole, or the part of each that a rank keeps. Needs torch."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import msgspec
import torch

from dayzero.data.vocabulary import vocabulary
from dayzero.errors import ReleaseError, UsageError
from dayzero.runtime.timeline import OFF, Background, Timeline
from dayzero.text import some

from . import reading
from .cuts import Cut
from .files import Files, Reader
from .formats import Sources, Unknown
from .kept import Kept
from .located import Located, NotMovedError, located
from .names import Made, Names
from .pieces import cut, shape_of, whole
from .reading import Called, Task
from .sources import Source
from .verifying import Verified, shared_out, stated

_BATCH = 64 << 20
"""Bytes that go to a device at a time."""


class Checkpoint:
    """The files of the release at `root`, for a model whose parameters have shapes and need no data.

    `names` are those of the model's state: parameters and persistent buffers. `reader`: what the bytes of tensors are
    read through; None: the system's files. `digests`: SHA-256 by file name; None: as the manifest in the folder states
    them. `partial`: files that the index names may be missing. May be used by several threads at once. Raises
    ReleaseError for files that are no checkpoint.
    """

    def __init__(self, root: Path, model: torch.nn.Module, *, reader: Reader | None = None,
                 digests: Mapping[str, str] | None = None, partial: bool = False) -> None:
        self._model = model
        self.files = Files(root, reader, partial=partial)
        self.digests = stated(root) if digests is None else dict(digests)
        self.verified: set[str] = set()
        """Files whose digest was found to be what is stated."""
        self._sources = Sources(self.files, _quantisation(root))
        self._names = Names(model, self._sources, self._stand_in)
        self._turned_modules = {name for name, module in model.named_modules()
                                if getattr(module, "is_transposed", False) is True}
        self._located: dict[str, Located | None] = {}
        self._padded: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors of the model that can be read."""
        return tuple(name for name in self._names.state if name in self._names.made)

    @property
    def missing(self) -> tuple[str, ...]:
        """Tensors of the model that are in no file, without those that are tied to one that is."""
        return self._names.missing

    @property
    def incomplete(self) -> tuple[str, ...]:
        """Tensors that are made of several in the files, of which fewer are there than for those of other layers."""
        counts = {name: sum(map(len, made.sources.values())) for name, made in self._names.made.items()}
        most: dict[str, int] = {}
        for name, count in counts.items():
            most[_alike(name)] = max(count, most.get(_alike(name), 0))
        return tuple(name for name, count in counts.items() if count < most[_alike(name)])

    @property
    def unused(self) -> tuple[str, ...]:
        """What the files hold that the model has no place for."""
        return self._names.unused

    @property
    def repaired(self) -> int:
        """Reads that were what was verified the second time only."""
        return self.files.repaired

    def check(self, names: Collection[str] | None = None) -> str:
        """What the files hold beside the model, in a few words.

        Raises ReleaseError when a tensor of the model, or one of `names`, is in no file or has another shape there,
        NotPossible when its format is not known. A tensor that is longer there than the model's is taken to be padded:
        its first values are read, and that is among the words.
        """
        beside, hint = self._beside(), self._hint()
        if missing := [name for name in self.missing if names is None or name in names]:
            raise ReleaseError(f"the files do not hold {some(missing)} of the model", hint)
        for name in self.names if names is None else names:
            self._where(name)
        if self._padded:
            name, (stored, wanted) = next(iter(self._padded.items()))
            more = f" (and {len(self._padded) - 1} more likewise)" if len(self._padded) > 1 else ""
            padded = f"of {name}, stored as {list(stored)}, the model takes the first {list(wanted)}{more}"
            return f"{beside}; {padded}" if beside else padded
        return beside

    def _beside(self) -> str:
        return f"the files hold {some(self.unused)}, which the model has no place for" if self.unused else ""

    def _hint(self) -> str:
        beside = self._beside()
        return f"{beside}: compare the names; or fetch the files again" if beside else (
            "fetch the files again, or tell the publishers")

    def shape(self, name: str, ranges: Cut | None = None) -> tuple[int, ...]:
        """Shape of a tensor of the model, or of the part of it. Raises UsageError for ranges that are not in it."""
        try:
            return shape_of(self._names.state[name].shape, ranges or {})
        except ValueError as error:
            raise UsageError(f"{name}: {error}", "cut it by its own shape") from None

    def bytes(self, name: str, ranges: Cut | None = None) -> int:
        """Bytes that a part of a tensor has in the files."""
        tensor = self._where(name)
        if tensor is None:
            return sum(round(math.prod(source.shape) * source.stored) for source in self._of(self._made(name)))
        parts: list[float] = [math.prod(piece.size) * piece.source.stored for piece in cut(tensor.pieces, ranges or {})]
        return round(sum(parts))

    def fill(self, name: str, ranges: Cut, out: torch.Tensor) -> None:
        """Read a part of a tensor into `out`, which has its shape; values are converted to its dtype.

        Raises ReleaseError when it cannot be read, NotPossible when its format is not known, UsageError for a shape.
        """
        if tuple(out.shape) != self.shape(name, ranges):
            raise UsageError(f"{name} has {list(self.shape(name, ranges))}, not {list(out.shape)}", "cut it likewise")
        here = out if out.device.type == "cpu" and out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype)
        reading.run(reading.ordered(self._tasks(name, ranges, here)), self.files, 1)
        if here is not out:
            out.copy_(here)

    def keep(self, name: str, ranges: Cut) -> Kept | None:
        """A part of a tensor as it is stored; None where only the library's conversion can tell what is stored of it.

        Raises as `fill` does.
        """
        tensor = self._where(name)
        return None if tensor is None else Kept.read(cut(tensor.pieces, ranges), self.files)

    def files_of(self, names: Collection[str]) -> tuple[str, ...]:
        """Files with a stated digest that hold any of these tensors."""
        numbers = {source.place[0] for name in names for source in self._of(self._made(name))}
        return tuple(self.files.names[number] for number in sorted(numbers) if self.files.names[number] in self.digests)

    def verifies(self, rank: int, ranks: int) -> tuple[str, ...]:
        """Files with a stated digest that one of several ranks is to verify, all of them together each once."""
        sizes = {name: self.files.size(number) for number, name in enumerate(self.files.names) if name in self.digests}
        return shared_out(sizes, rank, ranks)

    def read(self, wanted: Mapping[str, Cut], *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu",
             threads: int = 4, verify: Collection[str] = (), timeline: Timeline = OFF) -> dict[str, torch.Tensor]:
        """Parts of tensors. `dtype`: of floating-point ones; None: as the model has them. `verify`: files that are read
        whole while that is done, and compared with their SHA-256; then they are in `verified`.

        For a device, files are read while what was read before goes there: up to two times 64 MiB, or tensors, are in
        host memory. Raises ReleaseError when something cannot be read or is not what a digest states, NotPossible for
        a format that is not known, UsageError for a file without a digest.
        """
        if unstated := [name for name in verify if name not in self.digests or name not in self.files.names]:
            raise UsageError(f"no SHA-256 is stated for {some(unstated)}", "verify the files that have one")
        left = set(verify)
        if torch.device(device).type == "cpu":
            return self._host(wanted, dtype, threads, left, timeline)
        made: dict[str, torch.Tensor] = {}
        with Background("place", timeline=timeline, limit=1) as placing:
            for batch in self._batches(wanted, dtype):
                tensors = self._host(batch, dtype, threads, left, timeline)
                placing.drain()
                placing.submit(_move, tensors, device, made, category="load", name="place",
                               nbytes=sum(tensor.nbytes for tensor in tensors.values()))
                del tensors
        return {name: made[name] for name in wanted}

    def _host(self, wanted: Mapping[str, Cut], dtype: torch.dtype | None, threads: int, verify: set[str],
              timeline: Timeline) -> dict[str, torch.Tensor]:
        """In host memory. Files of `verify` that hold any of it, or all when nothing is wanted of the others, are
        verified and taken off it."""
        made = {name: torch.empty(self.shape(name, ranges), dtype=self._dtype(name, dtype))
                for name, ranges in wanted.items()}
        todo: list[Task] = reading.ordered(
            task for name, ranges in wanted.items() for task in self._tasks(name, ranges, made[name]))
        numbers = {self.files.names.index(name) for name in verify}
        whole_files: list[Task] = [
            Verified(number, [task for task in todo if task.place[0] == number],
                     self.digests[self.files.names[number]], self.files.size(number)) for number in sorted(numbers)]
        rest = [task for task in todo if task.place[0] not in numbers]
        reading.run([*whole_files, *rest], self.files, threads, timeline)
        self.verified |= verify
        verify.clear()
        return made

    def _batches(self, wanted: Mapping[str, Cut], dtype: torch.dtype | None) -> Iterator[dict[str, Cut]]:
        """In the order of the files, 64 MiB or one tensor at a time."""
        batch: dict[str, Cut] = {}
        size = 0
        for name in sorted(wanted, key=lambda each: min(source.place for source in self._of(self._made(each)))):
            count = math.prod(self.shape(name, wanted[name])) * self._dtype(name, dtype).itemsize
            if batch and size + count > _BATCH:
                yield batch
                batch, size = {}, 0
            batch[name] = wanted[name]
            size += count
        if batch:
            yield batch

    def _tasks(self, name: str, ranges: Cut, out: torch.Tensor) -> Iterator[Task]:
        tensor = self._where(name)
        if tensor is not None:
            yield from reading.tasks(cut(tensor.pieces, ranges), out)
        else:
            place = min(source.place for source in self._of(self._made(name)))
            yield Called(place, self.bytes(name), lambda: self._convert(name, ranges, out))

    def _convert(self, name: str, ranges: Cut, out: torch.Tensor) -> None:
        """By the library, of whole tensors: what it does is not known to be moving alone."""
        value = self._fitting(name, self._names.tensor(name, lambda source: self._all(source, out.dtype)))
        for axis, kept in ranges.items():
            value = torch.cat([value.narrow(axis, first, last - first) for first, last in kept], axis)
        out.copy_(value)

    def _all(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        source = self._source(name)
        made = torch.empty(source.shape, dtype=dtype)
        for task in reading.tasks(whole(source), made):
            task.run(self.files)
        return made.T if source.turned else made

    def _made(self, name: str) -> Made:
        if name not in self._names.made:
            raise ReleaseError(f"the files do not hold {name} of the model", "fetch the files again")
        return self._names.made[name]

    def _of(self, made: Made) -> list[Source]:
        return [self._source(name) for names in made.sources.values() for name in names]

    def _source(self, name: str) -> Source:
        source = self._sources[name]
        if isinstance(source, Unknown):
            raise source.refuse()
        return source

    def _stand_in(self, name: str) -> Any:
        source = self._source(name)
        made = located(source, torch.float32)
        return made.transpose(0, 1) if source.turned else made

    def _where(self, name: str) -> Located | None:
        """Where its values lie; None when only the library's conversion can tell."""
        if name not in self._located:
            made = self._made(name)
            try:
                tensor = self._turned(name, made, self._names.tensor(name, self._stand_in))
                self._located[name] = cast("Located", self._fitting(name, tensor))
            except NotMovedError:
                self._located[name] = None
        return self._located[name]

    def _fitting(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Without padding at the ends of axes. Raises ReleaseError for another shape."""
        stored, wanted = tuple(tensor.shape), tuple(self._names.state[name].shape)
        if stored == wanted:
            return tensor
        if len(stored) != len(wanted) or any(have < need for have, need in zip(stored, wanted, strict=True)):
            raise ReleaseError(f"{name} is stored as {list(stored)}, but the model has {list(wanted)}", self._hint())
        self._padded[name] = stored, wanted
        return tensor[tuple(slice(extent) for extent in wanted)]

    def _turned(self, name: str, made: Made, tensor: torch.Tensor) -> torch.Tensor:
        """A matrix that was packed is [out, in] here, the model's parameter may be [in, out]."""
        packed = any(self._sources.is_packed(source) or self._source(source).turned
                     for names in made.sources.values() for source in names)
        stated = name.rpartition(".")[0] in self._turned_modules
        if packed and tensor.dim() > 1 and (stated or tensor.shape != self._names.state[name].shape):
            return tensor.transpose(-1, -2)
        return tensor

    @cached_property
    def _kept(self) -> dict[torch.dtype, list[re.Pattern[str]]]:
        """Tensors that the model keeps in fp32 when it is asked for a narrower dtype."""
        always = getattr(self._model, "_keep_in_fp32_modules_strict", None) or ()
        half = getattr(self._model, "_keep_in_fp32_modules", None) or ()
        return {torch.bfloat16: [re.compile(each) for each in always],
                torch.float16: [re.compile(each) for each in (*always, *half)]}

    def _dtype(self, name: str, dtype: torch.dtype | None) -> torch.dtype:
        own = self._names.state[name].dtype
        if dtype is None or not own.is_floating_point:
            return own
        return torch.float32 if any(each.search(name) for each in self._kept.get(dtype, ())) else dtype

    def close(self) -> None:
        """Close the files; a later read opens them again."""
        self.files.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _move(tensors: dict[str, torch.Tensor], device: torch.device | str, made: dict[str, torch.Tensor]) -> None:
    """Put tensors on a device, one after the other, and let go of them here."""
    for name in list(tensors):
        made[name] = tensors.pop(name).to(device)


def _quantisation(root: Path) -> Mapping[str, Any]:
    """The quantisation table of the config, wherever it is in it; empty when there is none."""
    words = vocabulary().config
    for path in (root / name for name in words.files):
        if path.exists():
            try:
                config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeError) as error:
                raise ReleaseError(f"{path.name} is not a JSON object: {error}", "get the file again") from None
            return next(_tables(config, words.words["quantization"]), {})
    return {}


def _tables(config: Mapping[str, Any], keys: Collection[str]) -> Iterator[Mapping[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            if key in keys:
                yield value
            else:
                yield from _tables(value, keys)


def _alike(name: str) -> str:
    """The same for tensors of different layers."""
    return re.sub(r"\d+", "#", name)
