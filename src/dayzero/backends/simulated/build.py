"""Builds the extension once for each source, torch and Python, and keeps it in the user's cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from dayzero.errors import NotPossible
from dayzero.text import one_line

SOURCE = Path(__file__).with_name("device.cpp")
_NAME = "dayzero_simulated"
_FLAGS = ("-O1", "-fvisibility=hidden")
_HINT = "install a C++ compiler and ninja, such as the packages g++ and ninja-build"


def lacking() -> str:
    """Why it cannot be built here, unless it is built already; empty: it can."""
    if find_spec("torch") is None:
        return "torch is not installed"
    if library().exists():
        return ""
    compiler = os.environ.get("CXX", "c++" if shutil.which("c++") else "g++").split()[0]
    missing = [name for name in (compiler, "ninja") if shutil.which(name) is None]
    if not missing:
        return ""
    return f"it is built by {' and '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} missing"


def library() -> Path:
    """Where the built extension is, or will be."""
    told = (SOURCE.read_bytes(), version("torch").encode(), sys.version.encode(), " ".join(_FLAGS).encode())
    digest = hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in told)).hexdigest()[:20]
    return _cache() / digest / f"{_NAME}.so"


def built() -> Path:
    """The extension, built now if it is not there (a minute or less), by one process while others wait for it. Raises
    NotPossible with the compiler's words."""
    target = library()
    if target.exists():
        return target
    if reason := lacking():
        raise NotPossible(f"the simulated accelerator cannot be built: {reason}", _HINT)
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _build(target)
    return target


def _build(target: Path) -> None:
    """Whole or not at all."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-", ignore_cleanup_errors=True) as folder:
        _compile(Path(folder))
        os.replace(Path(folder, target.name), target)


def _compile(folder: Path) -> None:
    """In a process of its own: the tool that builds also loads, from a place that will be gone."""
    code = ("import sys; from torch.utils.cpp_extension import load; "
            "load(sys.argv[1], [sys.argv[2]], build_directory=sys.argv[3], is_python_module=False, verbose=True, "
            "extra_cflags=sys.argv[4:])")
    done = subprocess.run([sys.executable, "-c", code, _NAME, str(SOURCE), str(folder), *_FLAGS],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if "error" in line.lower()] or [done.stdout[-300:]]
        raise NotPossible(f"the simulated accelerator cannot be built: {one_line(errors[0])}", _HINT)


def _cache() -> Path:
    """Below $XDG_CACHE_HOME, or ~/.cache; a relative one counts for nothing."""
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = stated if stated.is_absolute() else Path.home() / ".cache"
    with contextlib.suppress(OSError):
        base.mkdir(parents=True, exist_ok=True)
    return base / "dayzero" / "simulated"
