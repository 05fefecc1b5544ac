"""Read what ranks dumped: numpy and the safetensors reader, no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dayzero.errors import StoreError

Array = NDArray[np.float32]
Sketch = NDArray[np.float64]
_LAYER = re.compile(r"layers\.(\d+)")
_KEY = re.compile(r"\d+/(embedding|layers\.\d+|norm|logits)")
AGAIN = "run again with --from run --force"


class Dump:
    """All ranks' dump files of one dtype in a folder.

    Raises StoreError when there is none, one is damaged, or two ranks dumped the same.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        self._file: dict[str, Path] = {}
        for path in _files(folder, f"{dtype}-rank-*.safetensors"):
            names = _names(path)
            if twice := sorted(self._file.keys() & names):
                raise StoreError(f"{self._file[twice[0]]} and {path.name} both hold {twice[0]}", AGAIN)
            self._file |= dict.fromkeys(names, path)
        keys = [name.partition("/") for name in self._file]
        self.prompts = tuple(sorted({int(prompt) for prompt, _, _ in keys}))
        """Numbers of the prompts."""
        self.places = tuple(sorted({place for _, _, place in keys}, key=_order))
        """`embedding`, `layers.0` ... `norm`, `logits`, in the order in which a token passes them."""

    def read(self, prompt: int, place: str) -> Array:
        """[tokens, width]. Raises StoreError when it was not dumped."""
        path = self._file.get(f"{prompt}/{place}")
        if path is None:
            raise StoreError(f"the dump has no {place} of prompt {prompt}", AGAIN)
        with _opened(path) as file:
            return np.asarray(file.get_tensor(f"{prompt}/{place}"), dtype=np.float32)


class Sketches:
    """Gradient sketches of one launch, those of a parameter that several stages hold added up.

    Raises StoreError when a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.values: dict[str, Sketch] = {}
        self.rows = 0
        """Sequences in the batch."""
        for path in sorted(folder.glob("gradients-rank-*.safetensors")):
            with _opened(path) as file:
                self.rows = int(file.metadata()["rows"])
                for name in file.keys():  # noqa: SIM118  (not a mapping)
                    values = file.get_tensor(name).astype(np.float64)
                    self.values[name] = np.add(self.values.get(name, np.zeros_like(values)), values)


def layer_number(place: str) -> int | None:
    """N of `layers.N`."""
    match = _LAYER.fullmatch(place)
    return int(match[1]) if match else None


def _order(place: str) -> tuple[int, int]:
    return {"embedding": 0, "norm": 2, "logits": 3}.get(place, 1), layer_number(place) or 0


def _files(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    if not found:
        raise StoreError(f"there are no dumps in {folder}", AGAIN)
    return found


def _names(path: Path) -> list[str]:
    with _opened(path) as file:
        names = list(file.keys())
        if odd := [name for name in names if not _KEY.fullmatch(name)]:
            raise ValueError(f"{odd[0]!r} is no prompt and place")
        return names


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file, for reading. Raises StoreError when it, or what is made of it meanwhile, shows that it is damaged.

    The reader is no part of the base install.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:
            yield file
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise StoreError(f"the dump {path} is damaged: {error}", AGAIN) from None
