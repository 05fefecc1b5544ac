"""Where a verb may write a file that the user names: never over what it reads, and only in a folder that is there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from dayzero.errors import UsageError


def refuse_output(option: str, file: Path, read: Iterable[Path | str]) -> None:
    """Raise UsageError for a file that cannot be written, is one of those that are read, or lies in such a folder.
    `option` is the option's name; `read` also takes what is no path, like a hub id."""
    folder = file.parent
    if not folder.is_dir():
        raise UsageError(f"{option}: {folder} is not a folder", "make the folder first, or give a file in another one")
    if file.exists() and not file.is_file():
        raise UsageError(f"{option}: {file} is not an ordinary file", f"give {option} the name of a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option}: no file may be written in {folder}", f"give {option} a file in another folder")
    places = {folder.resolve() / file.name, file.resolve()}
    for source in map(Path, read):
        kept = source.resolve()
        if source.is_dir() and any(kept in place.parents for place in places):
            raise UsageError(f"{option}: {file} lies in the release {source}", f"give {option} a file outside of it")
        if kept in places or (source.is_file() and file.exists() and file.samefile(source)):
            raise UsageError(f"{option}: {file} is what is read", f"give {option} another file")


def refuse_outputs(files: Mapping[str, Path | None], read: Iterable[Path | str]) -> None:
    """`refuse_output` for each option that names a file; two may not name the same one."""
    sources, taken = tuple(read), dict[Path, str]()
    for option, file in files.items():
        if file is None:
            continue
        refuse_output(option, file, sources)
        if (other := taken.setdefault(file.resolve(), option)) != option:
            raise UsageError(f"{other} and {option} name the same file {file}", "give each a file of its own")
