"""The one JSON store: artifacts with digests of what they were made from, files and folders that appear completely or
not at all, the run directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from dayzero.errors import StoreError, UsageError
from dayzero.text import one_line

from .base import SCHEMA_VERSION, Noun, digest, from_json, to_json

T = TypeVar("T")
_LOCK, _TRIES = ".lock", 20
_SHOWN = 200
Status = Literal["done", "failed", "not_possible"]


class Artifact(Noun, frozen=True, kw_only=True):
    """One stage's file: what it made, or why it could not."""

    stage: str
    """Name of the stage."""
    schema: str
    """Name of the noun in `data`."""
    schema_version: int
    """Version of the nouns' definitions."""
    dayzero: str
    """Version of the program that wrote it."""
    status: Status
    """done, failed (it ran and did not work) or not_possible (it cannot run here)."""
    reason: str
    """Why it failed or is not possible; empty when done."""
    hint: str
    """What would make it possible; may be empty."""
    inputs: dict[str, str]
    """Digest of everything that it was made from, by name."""
    seconds: float
    """What the stage took."""
    data: msgspec.Raw
    """The noun; null unless done."""

    @property
    def digest(self) -> str:
        """Digest of the content, without times: equal content gives an equal digest."""
        return digest([self.schema, self.status, self.reason, self.data])

    def load(self, type_: type[T]) -> T:
        """The noun. Raises StoreError when the file holds another one or is damaged."""
        try:
            return from_json(self.data, type_)
        except (msgspec.ValidationError, msgspec.DecodeError, ValueError) as error:
            raise StoreError(f"the file of stage {self.stage} is damaged: {error}",
                             f"make it again with --from {self.stage} --force") from None


def read_regular(path: Path, limit: int) -> bytes:
    """Content of a file. Raises OSError when it cannot be read, has more than `limit` bytes or is no regular file (a
    pipe would never end), ValueError for a path that no file can have."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > limit:
        raise OSError(errno.EFBIG, f"it has {status.st_size} bytes; at most {limit} make sense", str(path))
    return path.read_bytes()


def write_atomic(path: Path, data: bytes | Iterable[bytes | memoryview], *, sync: bool = True) -> None:
    """Put `data`, or its pieces one behind the other, at `path` completely or not at all. Raises StoreError; what was
    there before is then still there. `sync=False`: not so when the machine loses its power at that moment."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.writelines((data,) if isinstance(data, bytes) else data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}",
                         "free some space or choose another folder; nothing was changed") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def refuse_folder(out: Path, sources: Iterable[Path | str | None] = ()) -> None:
    """Raise UsageError for a new folder that is there and not empty, and for one inside of a folder that is read, or
    around what is read. `sources`: what is read; None and hub ids count for nothing."""
    shown = one_line(str(out), _SHOWN)
    if os.path.lexists(out) and (not out.is_dir() or out.is_symlink() or any(out.iterdir())):
        raise UsageError(f"{shown} exists and is not an empty folder", "choose another folder, or remove it first")
    place = out.resolve()
    for source in (Path(source) for source in sources if source is not None):
        if source.is_dir() and place.is_relative_to(source.resolve()):
            raise UsageError(f"{shown} lies in {one_line(str(source), _SHOWN)}, which is read",
                             "choose a folder outside of it")
        if source.exists() and source.resolve().is_relative_to(place):
            raise UsageError(f"{one_line(str(source), _SHOWN)}, which is read, lies in {shown}",
                             "choose another folder")


@contextlib.contextmanager
def staged_folder(out: Path, needed: int = 0) -> Iterator[Path]:
    """A new folder beside `out` that becomes it when the block ends well, and is removed otherwise. `needed`: bytes
    that will be written. Raises StoreError when it cannot be written, for any error of the system in the block too."""
    folder, shown = None, one_line(str(out), _SHOWN)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out.parent).free
        if needed > free:
            raise StoreError(f"cannot write {shown}: {needed:,} bytes are needed and {free:,} are free",
                             "free some space or choose another folder; nothing was left behind")
        folder = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.", suffix=".part"))
        yield folder
        folder.chmod(0o755)
        os.replace(folder, out)
    except OSError as error:
        raise StoreError(f"cannot write {shown}: {error.strerror or error}",
                         "free some space or choose another folder; nothing was left behind") from None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def refuse_link(folder: Path) -> None:
    """Raise StoreError when a folder of the run directory is a link to another place."""
    if folder.is_symlink():
        raise StoreError(f"{folder} is a symbolic link", "remove the link; nothing was written behind it")


def write_bundle(folder: Path, files: dict[str, str]) -> None:
    """Write {path: text} below `folder`, each file atomically. Raises StoreError for a path that leaves it, and for a
    folder that is a link to another place."""
    refuse_link(folder)
    root = folder.resolve()
    for name, text in files.items():
        path = (folder / name).resolve()
        if not path.is_relative_to(root) or path == root:
            raise StoreError(f"a bundle may not write outside its folder: {name!r}", "report this as a bug")
        write_atomic(path, text.encode())


class RunDirectory:
    """`runs/<release>@<target>/`: one file for each stage."""

    def __init__(self, path: Path, version: str) -> None:
        self.path = path
        self.version = version

    def file(self, number: int, stage: str) -> Path:
        """Where a stage's artifact lies."""
        return self.path / f"{number}-{stage}.json"

    def save(self, number: int, stage: str, *, data: Any, inputs: dict[str, str], seconds: float,
             status: Status = "done", reason: str = "", hint: str = "") -> Artifact:
        """Write a stage's artifact and return it."""
        artifact = Artifact(
            stage=stage, schema=type(data).__name__, schema_version=SCHEMA_VERSION, dayzero=self.version,
            status=status, reason=reason, hint=hint, inputs=inputs, seconds=round(seconds, 3),
            data=msgspec.Raw(to_json(data)))
        write_atomic(self.file(number, stage), to_json(artifact) + b"\n")
        return artifact

    def load(self, number: int, stage: str) -> Artifact | None:
        """A stage's artifact; None when there is none that this version can use (it is then made again)."""
        try:
            artifact = from_json(self.file(number, stage).read_bytes(), Artifact)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read {self.file(number, stage)}: {error.strerror}", "check the folder") from None
        except (msgspec.ValidationError, msgspec.DecodeError):
            return None
        return artifact if artifact.schema_version == SCHEMA_VERSION and artifact.dayzero == self.version else None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory. Raises StoreError when another process has it. A lock ends with the process that has it.

        A directory that the block made and left without an artifact is removed, with the folders made for it.
        """
        absent = [folder for folder in (self.path, *self.path.parents) if not os.path.exists(folder)]
        handle = self._take()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if os.listdir(self.path) == [_LOCK]:  # a wrong request leaves nothing
                    os.unlink(self.path / _LOCK)
                    for folder in absent or [self.path]:
                        os.rmdir(folder)
            os.close(handle)

    def _take(self) -> int:
        """The open and locked file of the lock. One that had it may be removing the directory: then try again."""
        lock, again = self.path / _LOCK, _TRIES
        while True:
            again -= 1
            handle = None
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(handle), os.stat(lock)):
                    held, handle = handle, None
                    return held
            except BlockingIOError:
                raise StoreError(f"another process is using {self.path}",
                                 "wait for it, or use another --runs") from None
            except OSError as error:
                if not again or not isinstance(error, FileNotFoundError):
                    raise StoreError(f"cannot use {self.path}: {error.strerror}",
                                     "choose another folder with --runs") from None
            finally:
                if handle is not None:
                    os.close(handle)

    def clear(self) -> None:
        """Remove all artifacts."""
        for path in self.path.glob("*.json"):
            path.unlink()
