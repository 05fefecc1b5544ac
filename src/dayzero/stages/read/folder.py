"""The files of a release folder: which there are, what each is for, and whether the tensors' data is really there.

Names from a release (its index, its manifest, a hub's listing) are somebody else's text. `inside` is the only way from
such a name to a path.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import NoReturn

from dayzero.data.vocabulary import vocabulary
from dayzero.errors import ReleaseError, UnsafePathError
from dayzero.schema import to_json
from dayzero.schema.store import read_regular

QUANT_CONFIG, QUANT_TABLE = "hf_quant_config.json", "quantization"
CONFIG_LIMIT = 16 * 2**20

_TOKENIZER = ("tokenizer*", "vocab*", "merges.txt", "*.tiktoken", "tekken.json", "special_tokens_map.json",
              "added_tokens.json", "chat_template*", "*.model", "*.jinja")  # fmt: skip
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_PICKLED_EXTRAS = ("training_args.bin", "optimizer.*", "scheduler.*", "rng_state*")
_NEEDED = (".safetensors", ".json")
"""What has such a name and is no file would go unread without a word."""
_BLOCK = 4096


def safe_name(name: str) -> str:
    """The name of a file inside a release, with forward slashes. Raises UnsafePathError for any other text."""
    path = PurePosixPath(name)
    parts = name.split("/")
    if (not name or path.is_absolute() or not name.isprintable() or "\\" in name or re.match(r"[A-Za-z]:", name)
            or any(part in ("", ".", "..") for part in parts)):  # fmt: skip
        raise UnsafePathError(f"not the name of a file inside the release: {name!r}"[:300],
                              "do not use this release; tell the people who published it")  # fmt: skip
    return name


def inside(root: Path, name: str) -> Path:
    """Path of a release's file. Raises UnsafePathError when the name, or a symbolic link behind it, leaves the folder.

    In a hub cache (`<repo>/snapshots/<commit>`) the files are links into `<repo>/blobs`, which is allowed too.
    """
    path = root / safe_name(name)
    home = root.resolve()
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:
        raise ReleaseError(f"cannot follow {name!r}: {error}", "put the file itself in its place") from None
    if target.is_relative_to(home):
        return path
    if home.parent.name == "snapshots" and target.parent == home.parent.parent / "blobs":
        return path
    raise UnsafePathError(f"{name!r} is a link that leaves the release's folder",
                          "put the file itself (or a hard link) in its place")  # fmt: skip


def read_bounded(path: Path, limit: int, name: str) -> bytes:
    """Content of a small file. Raises ReleaseError if it is not a regular file, not readable or over `limit` bytes."""
    try:
        return read_regular(path, limit)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ReleaseError(f"cannot read {name}: {why}", "check that it is the file itself, and readable") from None


def is_there(root: Path, name: str) -> bool:
    """Whether a release has a file. Raises ReleaseError if that cannot be known, UnsafePathError."""
    try:
        inside(root, name).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ReleaseError(f"cannot read {name}: {error.strerror}", "check the folder's permissions") from None
    return True


def config_name(names: Collection[str]) -> str | None:
    """The file with the config among a release's files; None when there is none."""
    return next((name for name in vocabulary().config.files if name in names), None)


def config_names() -> str:
    """What a config's file may be called, for messages."""
    return " or ".join(vocabulary().config.files)


def read_config(root: Path) -> tuple[dict[str, object], str]:
    """The config as it is (NaN and Infinity included, which Python's JSON writes), and its file's name. Raises
    ReleaseError."""
    name = config_name([name for name in vocabulary().config.files if is_there(root, name)])
    if name is None:
        raise ReleaseError(f"not a release folder: {root} has no {config_names()}",
                           "give the folder that holds the config and the safetensors files")  # fmt: skip
    return _read_object(root, name), name


def read_quantization(root: Path) -> tuple[dict[str, object], str] | None:
    """What a file of its own states about quantisation, for a config that says nothing, and where it was read; None
    when there is no such file. Raises ReleaseError."""
    if not is_there(root, QUANT_CONFIG):
        return None
    stated = _read_object(root, QUANT_CONFIG)
    table = stated.get(QUANT_TABLE, stated)
    if not isinstance(table, dict):
        raise ReleaseError(f"{QUANT_CONFIG}: {QUANT_TABLE} is not a table", f"get {QUANT_CONFIG} again, or correct it")
    return table, f"{QUANT_CONFIG}: {QUANT_TABLE}" if table is not stated else QUANT_CONFIG


def _read_object(root: Path, name: str) -> dict[str, object]:
    """A JSON object at the top of a release. Raises ReleaseError."""
    data = read_bounded(inside(root, name), CONFIG_LIMIT, name)
    hint = f"get {name} again, or correct it"
    try:
        value = json.loads(data.decode("utf-8-sig"))
        to_json(value)
    except UnicodeError:
        raise ReleaseError(f"{name} is not UTF-8 text", hint) from None
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"{name} is not JSON: {error}", hint) from None
    if not isinstance(value, dict):
        raise ReleaseError(f"{name} is not a JSON object but {type(value).__name__}", hint)
    return value


def list_files(root: Path) -> dict[str, os.stat_result]:
    """Regular files below `root` by name, sorted; hidden files and folders and Python's caches left out.

    A link to nothing is no file. Raises UnsafePathError for a link that leaves the folder or a name that is not text,
    ReleaseError for a folder that cannot be read, and for anything but a file in the place of weights or of JSON.
    """
    found = {}
    for folder, folders, names in os.walk(root, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for base in filter(lambda name: name.endswith(_NEEDED), folders):
            raise _irregular(base)
        for base in names:
            if base.startswith("."):
                continue
            name = (Path(folder) / base).relative_to(root).as_posix()
            path = inside(root, name)
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                _unreadable(error)
            if stat.S_ISREG(status.st_mode):
                found[name] = status
            elif base.endswith(_NEEDED):
                raise _irregular(name)
    return dict(sorted(found.items()))


def _irregular(name: str) -> ReleaseError:
    return ReleaseError(f"{name} is not a regular file", "put the file itself in its place")


def _unreadable(error: OSError) -> NoReturn:
    raise ReleaseError(f"cannot read {error.filename}: {error.strerror}", "check the folder's permissions") from None


def role(name: str, shards: Collection[str]) -> str:
    """What a file of a release is for: weights (the given shards), index, config, code, tokenizer or other."""
    base = name.rsplit("/", 1)[-1]
    if name in shards:
        return "weights"
    if base.endswith(".index.json"):
        return "index"
    if base.endswith(".py"):
        return "code"
    if any(fnmatchcase(base, pattern) for pattern in _TOKENIZER):
        return "tokenizer"
    return "config" if base.endswith("config.json") or name in vocabulary().config.files else "other"


def refuse_pickles(names: Iterable[str]) -> None:
    """Raise ReleaseError if there are checkpoints that only unpickling could read. Call when there is nothing else."""
    for name in names:
        base = name.rsplit("/", 1)[-1]
        pickled = any(fnmatchcase(base, pattern) for pattern in _PICKLED)
        if pickled and not any(fnmatchcase(base, pattern) for pattern in _PICKLED_EXTRAS):
            raise ReleaseError(
                f"the weights are pickled ({name}), and nothing is unpickled here, ever: that can run any program",
                "convert them: in an isolated environment without network load the model with transformers and call "
                "save_pretrained(folder), which writes safetensors")  # fmt: skip


def holds_data(path: Path, data_start: int) -> bool:
    """Whether the data behind a header is there and not one great hole, as in a release of headers only.

    A hole: less than 1/16 of what follows the header's last block is on disk. A file that ends in that block has data.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        first = -(-data_start // _BLOCK) * _BLOCK
        enough = (status.st_size - first) // 16
        if status.st_size <= first or status.st_blocks * 512 > first + enough:
            return True
        # Block counts of a file just written may lag behind; its map of holes does not.
        seen, at = 0, first
        while seen <= enough:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
                end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            except OSError:  # ENXIO: no data after `at`
                return False
            seen, at = seen + end - at, end
        return True


def blob_digest(path: Path) -> str | None:
    """SHA-256 that the hub stated for a file in its cache: the blob's name, for files in large-file storage."""
    target = path.resolve()
    return target.name if target.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", target.name) else None
