"""Import of a GGUF file: an ordinary bf16 safetensors release with the same config, tokenizer and dequantised weights.

The conversion is transformers' own. What comes out is not the original model but what the file's quantisation left of
it; the manifest beside the weights says so. Needs torch, transformers and gguf.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dayzero.errors import NotPossible, ReleaseError, StoreError
from dayzero.progress import SILENT, Progress
from dayzero.schema.manifest import manifest_of, save_manifest
from dayzero.schema.store import refuse_folder, staged_folder

_NEEDS = ("torch", "transformers", "gguf")
_SHARD_SIZE = "100MB"
_MAGIC = b"GGUF"
_PLAIN = frozenset({"F64", "F32", "F16", "BF16"})
_MALFORMED = (ValueError, KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RuntimeError)
"""What the libraries raise on a file whose content makes no sense."""


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself."""

    architecture: str
    tensor_types: Counter[str]
    """Tensors of each type, by ggml's names."""
    parts: int
    """Files that the model was split into."""

    @property
    def provenance(self) -> str:
        """How a release made from it came to be."""
        quantised = [name for name, _ in self.tensor_types.most_common() if name not in _PLAIN]
        if quantised:
            return f"dequantised from GGUF {', '.join(quantised)}"
        return f"converted from GGUF {', '.join(sorted(self.tensor_types))}"


def import_gguf(source: Path, out: Path, *, progress: Progress = SILENT) -> Path:
    """Write the release folder `out`, which must not exist or be empty; returns it. Nothing else is left behind.

    Raises NotPossible when a package is missing, UsageError for `out`, ReleaseError for the file (not a GGUF, cut
    short, an architecture that transformers does not convert), StoreError when it cannot be written.
    """
    if missing := [package for package in _NEEDS if find_spec(package) is None]:
        raise NotPossible(f"GGUF files cannot be imported: {' and '.join(missing)} not installed",
                          "pip install 'dayzero[demo]'")
    refuse_folder(out)
    progress.update(f"reading {source.name}")
    header = read_header(source)
    with _without_bars(progress), staged_folder(out) as folder:
        model, tokenizer = _load(source, header, progress)
        progress.update("writing the release")
        with _writing(out):
            model.save_pretrained(folder, max_shard_size=_SHARD_SIZE)
            tokenizer.save_pretrained(folder)
        _seal(folder, f"{header.provenance} of {source.name}, sha256 {_sha256(source, progress)}", progress)
    return out


def read_header(source: Path) -> Header:
    """Architecture and tensor types of a GGUF file. Raises ReleaseError."""
    from gguf import GGUFReader

    try:
        if source.exists() and not source.is_file():
            raise ReleaseError(f"{source} is not a regular file", "give the path of a .gguf file")
        with source.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ReleaseError(f"cannot read {source}: {error.strerror}", "give the path of a .gguf file") from None
    if magic != _MAGIC:
        raise ReleaseError(f"{source.name} is not a GGUF file", "give the path of a .gguf file")
    try:
        reader = GGUFReader(source)
        architecture = _value(reader, "general.architecture", "")
        header = Header(architecture=str(architecture), parts=int(_value(reader, "split.count", 1)),
                        tensor_types=Counter(tensor.tensor_type.name for tensor in reader.tensors))
    except _MALFORMED as error:
        raise ReleaseError(f"{source.name} is damaged or cut short: {_first_line(error)}",
                           "get the file again and compare its size and digest") from None
    if header.parts > 1:
        raise ReleaseError(f"{source.name} is one of {header.parts} parts",
                           "merge the parts into one file first; the tool that split them does it")
    return header


def _value(reader: Any, key: str, default: object) -> Any:
    field = reader.get_field(key)
    return default if field is None else field.contents()


def _load(source: Path, header: Header, progress: Progress) -> tuple[Any, Any]:
    """(model in bf16, tokenizer)"""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from .load import check_filled

    progress.update(f"dequantising {source.name}")
    place = {"pretrained_model_name_or_path": str(source.parent.resolve()), "gguf_file": source.name,
             "local_files_only": True}  # fmt: skip
    try:
        tokenizer = AutoTokenizer.from_pretrained(**place)
        model, info = AutoModelForCausalLM.from_pretrained(
            **place, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), output_loading_info=True,
            ignore_mismatched_sizes=True)
    except (*_MALFORMED, OSError) as error:
        raise ReleaseError(f"transformers cannot convert {source.name} ({header.architecture}): {_first_line(error)}",
                           "use a version of transformers that converts this architecture") from None
    check_filled(info)
    return model, tokenizer


@contextmanager
def _without_bars(progress: Progress) -> Iterator[None]:
    """The library draws no bars of its own, not even the one of reading a GGUF, which no setting of it turns off; what
    is being done is told to `progress`."""
    from transformers import modeling_gguf_pytorch_utils as library
    from transformers.utils import logging

    def told(tensors: Sequence[Any], **_: Any) -> Iterator[Any]:
        for number, tensor in enumerate(tensors):
            progress.update("dequantising", number, len(tensors))
            yield tensor

    names: dict[str, Any] = vars(library)
    bars, drawn = logging.is_progress_bar_enabled(), names.get("tqdm")
    logging.disable_progress_bar()
    names["tqdm"] = told
    try:
        yield
    finally:
        names["tqdm"] = drawn
        if bars:
            logging.enable_progress_bar()


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Turns whatever a full or broken disk makes the libraries raise into a StoreError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise StoreError(f"cannot write {out}: {_first_line(error)}",
                         "free some space or choose another folder; nothing was left behind") from None


def _seal(folder: Path, provenance: str, progress: Progress) -> None:
    """Readable files, on disk for good, with a manifest of their digests."""
    digests = {}
    for path in sorted(folder.iterdir()):
        path.chmod(0o644)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        digests[path.name] = _sha256(path, progress)
    save_manifest(folder, manifest_of(folder, digests, f"{provenance}: not the original bf16 weights"))


def _sha256(path: Path, progress: Progress) -> str:
    progress.update(f"hashing {path.name}")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
