"""An environment with the transformers that a release declares, for its code to be built and traced in.

A virtual environment holds that version with what it requires; all else (torch, this program's own requirements) is
taken from the environment that is running, which stands behind it on the path. It is kept below a cache folder by
version and used again; a build that fails or is interrupted leaves nothing that would be used. Nothing of a release
runs here.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from dayzero.errors import NotPossible
from dayzero.progress import SILENT, Progress
from dayzero.text import one_line

LIBRARY = "transformers"
KEY = "transformers_version"
"""Key of a config that states which version wrote it."""
_BEHIND = "dayzero_behind.pth"
_LIMIT = 1800.0
"""Seconds that an installation may take, and after which what an interrupted one left is removed."""
_UNREACHABLE = ("NewConnectionError", "ConnectionError", "Name or service not known", "Temporary failure in name",
                "ConnectTimeout", "ReadTimeout", "ProxyError", "dns error", "error sending request", "Network is")
"""What installers print when there is no way to the index."""
_HINT = "give the installer an index that has it, or trace in the present environment: --env present"


def declared(config: Mapping[str, Any]) -> str | None:
    """The version that a config declares, or a table inside of it; None: none. A development version, which no index
    has, stands for the release that it became. Raises NotPossible for what is no version."""
    stated = next(_texts(config), None)
    if stated is None:
        return None
    try:
        found = Version(stated)
    except InvalidVersion:
        raise NotPossible(f"{KEY} is {stated[:40]!r}, which is no version", "--env present needs none") from None
    return found.base_version if found.is_devrelease or found.local else str(found)


def present() -> str | None:
    """The version that is installed here; None: none."""
    try:
        return version(LIBRARY)
    except PackageNotFoundError:
        return None


def note(config: Mapping[str, Any]) -> str:
    """What is to be said of a graph that was traced in the present environment: empty when that is the declared one."""
    stated = next(_texts(config), None)
    try:
        same = stated is None or declared(config) == present()
    except NotPossible:
        same = False
    return "" if same else f"the release declares {LIBRARY} {one_line(str(stated), 40)}"


def interpreter(config: Mapping[str, Any], cache: Path, progress: Progress = SILENT) -> Path | None:
    """The Python to trace a release in that declares this config; None: the present one has the declared version.

    Raises NotPossible when none is declared, or its environment cannot be built here."""
    wanted = declared(config)
    if wanted is None:
        raise NotPossible(f"the release declares no {LIBRARY} version", "trace it without --env declared")
    return None if wanted == present() else environment(wanted, cache, progress)


def environment(wanted: str, cache: Path, progress: Progress = SILENT) -> Path:
    """The Python of the environment with that version, built below `cache` unless it is there. Raises NotPossible."""
    behind = _behind()
    key = hashlib.sha256("\n".join([sys.prefix, sys.base_prefix, *behind]).encode()).hexdigest()[:12]
    place = cache / "environments" / f"{LIBRARY}-{wanted}-py{sys.version_info[0]}.{sys.version_info[1]}-{key}"
    if not _python(place).is_file():
        progress.update(f"installing {LIBRARY} {wanted} in an environment of its own")
        try:
            _build(place, wanted, behind)
        except OSError as error:
            why = error.strerror or error
            raise NotPossible(f"no environment can be built in {place.parent}: {why}", _HINT) from None
    return _python(place)


def _build(place: Path, wanted: str, behind: list[str]) -> None:
    """Build it beside its place, and move it there when it is complete."""
    place.parent.mkdir(parents=True, exist_ok=True)
    _sweep(place.parent)
    folder = Path(tempfile.mkdtemp(prefix=".new-", dir=place.parent))
    try:
        create, install = _commands(folder)
        _run(create, "no virtual environment can be made")
        _run([*install, f"{LIBRARY}=={wanted}"], f"{LIBRARY} {wanted} cannot be installed")
        (_packages(folder) / _BEHIND).write_text("".join(f"{path}\n" for path in behind))
        _complete(folder, wanted)
        if place.is_dir():
            shutil.rmtree(place)  # its interpreter is gone
        with contextlib.suppress(OSError):
            folder.rename(place)
        if not _python(place).is_file():
            raise OSError(f"{place.name} cannot be moved into place")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _commands(folder: Path) -> tuple[list[str], list[str]]:
    """(makes the environment, installs into it). Wheels only: no code of a package runs before it is confined."""
    wheels = ["--only-binary", ":all:"]
    if uv := shutil.which("uv"):
        return ([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)],
                [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(_python(folder)), *wheels])
    ours, python = find_spec("pip") is not None, str(_python(folder))
    pip = [sys.executable, "-m", "pip", "--python", python] if ours else [python, "-m", "pip"]
    return ([sys.executable, "-m", "venv", *(["--without-pip"] if ours else []), str(folder)],
            [*pip, "install", "--quiet", "--disable-pip-version-check", "--no-input", "--retries", "2", *wheels])


def _run(command: list[str], failure: str) -> None:
    """Raises NotPossible with `failure` and the last thing that it said."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise NotPossible(f"{failure} within {_LIMIT:g} s", _HINT) from None
    if done.returncode:
        said = done.stderr + done.stdout
        if any(word in said for word in _UNREACHABLE):
            raise NotPossible(f"{failure}: the package index cannot be reached", _HINT)
        lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no reason is given"]
        errors = [number for number, line in enumerate(lines) if line.lower().startswith("error")]
        raise NotPossible(f"{failure}: {one_line(' '.join(lines[errors[-1] if errors else -1:]), 200)}", _HINT)


def _complete(folder: Path, wanted: str) -> None:
    """Raises NotPossible when the new Python does not have what it is for."""
    look = f"from importlib.metadata import version; print(version({LIBRARY!r}))"
    done = subprocess.run([_python(folder), "-I", "-c", look], capture_output=True, text=True, timeout=60, check=False)
    if done.stdout.strip() != wanted:
        raise NotPossible(f"{LIBRARY} {wanted} was installed, and {done.stdout.strip() or 'none'} is found", _HINT)


def _behind() -> list[str]:
    """Folders of installed packages of the running environment."""
    named = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path]
    installed = (Path(entry) for entry in named if entry and Path(entry).name in ("site-packages", "dist-packages"))
    return list(dict.fromkeys(str(path.resolve()) for path in installed if path.is_dir()))


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _packages(folder: Path) -> Path:
    base = str(folder)
    return Path(sysconfig.get_path("purelib", "venv", vars={"base": base, "platbase": base}))


def _sweep(folder: Path) -> None:
    """Remove what interrupted builds left."""
    for left in folder.glob(".new-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > 2 * _LIMIT:
                shutil.rmtree(left, ignore_errors=True)


def _texts(config: Mapping[str, Any]) -> Iterator[str]:
    """Versions that a config states: its own, then those of tables inside of it."""
    if isinstance(config.get(KEY), str):
        yield config[KEY]
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _texts(value)
