"""Records golden dumps: of a release that is run here, rank by rank, or of a server that tells logprobs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np

from dayzero import __version__
from dayzero.errors import NotPossible, StoreError, UsageError
from dayzero.floats import roundoff
from dayzero.progress import SILENT, Progress
from dayzero.runtime.assignment import DTYPES, Assignment, Record
from dayzero.runtime.endpoint import Endpoint
from dayzero.runtime.golden import Dump, Writer, noise_folders, open_dump
from dayzero.runtime.golden.dump import NOISE
from dayzero.runtime.golden.logprobs import Logprobs, entries
from dayzero.runtime.launch import LIMIT, launch
from dayzero.runtime.mesh import indivisible, refusal
from dayzero.runtime.seat import HOST, unusable
from dayzero.runtime.weights import check_weights
from dayzero.schema import Budget, Layout, Noun, Release
from dayzero.schema.golden import Origin, RankDump
from dayzero.schema.store import read_regular, refuse_folder

LAUNCH = "launch"
"""Folder inside of a dump with the ranks' logs while they run, and after they failed."""
Tokens = Sequence[Sequence[int]]
_ALONE = Layout()
_LARGEST = 2**31
_TOKENS_LIMIT = 1 << 30


class Asked(Record, frozen=True, kw_only=True):
    """What to record, and how the release is run for it. Its `folder` is not asked for here."""

    layout: Layout = _ALONE
    """Degrees of the run."""
    stages: tuple[tuple[int, int], ...] = ()
    """[first layer, end) of each pipeline stage; empty: as even as can be."""
    budgets: tuple[Budget, ...] = ()
    """What weights may take: of each rank, or one for all of them; empty: no limit."""
    seed: int = 0
    """Of everything random."""
    backend: str = "cpu"
    """Devices that ranks compute on."""
    own: bool = False
    """Whether the release's own code is to run, confined."""
    plain: bool = False
    """Whether the library loads and runs it, in one process."""
    noise: int = 0
    """How many runs with perturbed embeddings are recorded besides; more than none: one in `noise_dtype` too."""
    noise_dtype: str = ""
    """Precision whose roundoff they are perturbed by; empty: the release's own."""


class Recorded(Noun, frozen=True, kw_only=True):
    """What was recorded."""

    folder: str
    """The dump."""
    ranks: int
    """Ranks that wrote it."""
    entries: int
    """Tensors."""
    nbytes: int
    """Bytes of values."""
    sequences: int
    """Sequences."""
    noise: tuple[str, ...]
    """Dumps of perturbed runs, inside of it."""
    notes: tuple[str, ...]
    """What deserves to be known."""


def record_release(release: Release, tokens: Tokens, out: Path, asked: Asked, *, limit_s: float = LIMIT,
                   progress: Progress = SILENT) -> Recorded:
    """Run each sequence of tokens through the release; every rank writes its part into `out` as it computes.

    Raises NotPossible when it cannot run here, UsageError for wrong tokens or options, StoreError for a folder that is
    in use or a full disk, StageError when a rank dies; what was written by then can be read.
    """
    root = check_weights(release)
    if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        raise NotPossible(f"{' and '.join(missing)} not installed", "pip install 'dayzero[torch]'")
    if reason := refusal(asked.layout) or indivisible(release.model, asked.layout) or unusable(
            asked.backend, asked.layout):
        raise NotPossible(reason, "choose another layout with --layout, or other devices with --backend")
    check_asked(asked, tokens, release.model.vocab_size)
    _check_layers(asked, len(release.model.layers))
    refuse_folder(out, (root,))
    out.mkdir(parents=True, exist_ok=True)
    records = _records(release, out.resolve(), asked)
    for each in records:
        Path(each.folder).mkdir(exist_ok=True)
    assignment = Assignment(
        root=str(root), layout=asked.layout, passes=(), prompts=tuple(map(tuple, tokens)), max_new_tokens=1, batch=1,
        seed=asked.seed, gradient_rows=asked.layout.dp, own=asked.own, plain=asked.plain, record=records,
        backend=asked.backend, stages=asked.stages, budgets=asked.budgets)
    with left_behind(out):
        launched = launch(assignment, out / LAUNCH, limit_s=limit_s, progress=progress)
    shutil.rmtree(out / LAUNCH, ignore_errors=True)
    with open_dump(out) as dump:
        return told_of(dump, (*launched.events, *_cut_short(asked, tokens)))


@contextmanager
def left_behind(out: Path) -> Iterator[None]:
    """Say what is left in a folder that could not be written to the end. What was refused leaves nothing there."""
    try:
        yield
    except StoreError as error:
        raise StoreError(error.message, f"free some space and remove {out}, or choose another folder; what was written "
                                        "until then can be compared with --unfinished") from None
    except (UsageError, NotPossible):
        shutil.rmtree(out, ignore_errors=True)
        raise


def _cut_short(asked: Asked, tokens: Tokens) -> tuple[str, ...]:
    """That sequences have fewer tokens than are to be given one at a time: the first one is what begins it."""
    short = sum(len(ids) <= asked.decode for ids in tokens) if asked.decode else 0
    return (f"{short} of {len(tokens)} sequences have no more than {asked.decode} tokens: all of them but the first "
            "are given one by one",) if short else ()


def record_endpoint(endpoint: Endpoint, tokens: Tokens, out: Path, *, top: int = 5, progress: Progress = SILENT
                    ) -> Recorded:
    """What a server says about each sequence of tokens: logprobs of them, and of the likeliest `top`.

    Raises UsageError for tokens that are none, EndpointError when the server does not tell, StoreError.
    """
    check_asked(Asked(), tokens, _LARGEST)
    if alone := sum(len(ids) < 2 for ids in tokens):
        raise UsageError(f"{alone} of {len(tokens)} sequences have one token, which has no logprob", "give longer ones")
    refuse_folder(out)
    way = endpoint.way.name
    origin = Origin(release=endpoint.model, digests={}, engine=f"{endpoint.server.url} ({way})",
                    libraries={"dayzero": __version__}, dtype="F64", device="not known")
    head = RankDump(finished=False, origin=origin, layout=_ALONE, rank=0, place={}, seed=0, mode="whole")
    with left_behind(out):
        fewest = _ask(endpoint, tokens, Writer(out, head), top, progress)
    with open_dump(out) as dump:
        return told_of(dump, () if fewest >= top else (
            f"the server tells {fewest} of the {top} likeliest tokens that were asked for" if fewest else
            "the server does not tell which tokens are the likeliest",))


def _ask(endpoint: Endpoint, tokens: Tokens, writer: Writer, top: int, progress: Progress) -> int:
    """Record what the server says; of how many of the likeliest it tells which they are, at least."""
    fewest = top
    try:
        for number, ids in enumerate(tokens):
            progress.update("asking the server", number, len(tokens))
            told = endpoint.score(ids, top=top)
            fewest = min(fewest, int((told.top_ids >= 0).sum(1).min()))
            made, values = entries(number, np.array(ids, dtype=np.int64),
                                   Logprobs(told.logprobs, told.top_ids, told.top_logprobs))
            writer.begin(made)
            for entry, data in values:
                writer.add(entry, data)
            writer.flush_now_and_then()
        writer.finish()
    except BaseException as error:
        writer.abandon(f"{type(error).__name__}: {error}")
        raise
    return fewest


def read_tokens(path: Path) -> tuple[tuple[int, ...], ...]:
    """Token ids of a JSON file with a list of lists, or those of a golden dump. Raises UsageError, StoreError."""
    if path.is_dir():
        with open_dump(path, unfinished=True) as dump:
            sequences = dump.sequences
        if list(sequences) != list(range(len(sequences))) or any((ids < 0).any() for ids in sequences.values()):
            raise StoreError(f"the dump {path} does not tell all tokens of its sequences", "give a file of tokens")
        return tuple(tuple(map(int, ids)) for ids in sequences.values())
    try:
        return msgspec.json.decode(read_regular(path, _TOKENS_LIMIT), type=tuple[tuple[int, ...], ...])
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read tokens from {path}: {reason}", "--tokens takes a file with JSON like "
                         "[[1, 2, 3], [4, 5]], or the folder of a golden dump") from None


def check_asked(asked: Asked, tokens: Tokens, vocabulary: int) -> None:
    """Raises UsageError for tokens that the model does not have, and for options that do not go together."""
    if not tokens:
        raise UsageError("there are no sequences to record", "give --prompt, --prompts or --tokens")
    for number, ids in enumerate(tokens, 1):
        if not ids or min(ids) < 0 or max(ids) >= vocabulary:
            what = f"token {min(ids) if min(ids) < 0 else max(ids)}" if ids else "no tokens"
            raise UsageError(f"sequence {number} has {what}; the model's are 0 to {vocabulary - 1:,}",
                             "give tokens of this model, at least one in each sequence")
    for name, dtype in (("--dtype", asked.dtype), ("--noise-dtype", asked.noise_dtype)):
        if dtype and dtype not in DTYPES:
            raise UsageError(f"{name} {dtype}: there is no such precision", f"take one of {', '.join(DTYPES)}")
    if asked.plain and (asked.layout != _ALONE or asked.own or asked.paged or asked.budgets):
        raise UsageError("the library runs a release in one process, in memory and with its own class",
                         "leave out --layout, --paged, limits of memory and --trust-remote-code, or --library")
    if asked.backend == HOST and any(each.device is not None for each in asked.budgets):
        raise UsageError(f"{HOST} has no memory of its own for --device-memory", "limit it with --host-memory")
    if asked.gradients and (asked.decode or asked.noise or asked.paged):
        raise UsageError("gradients are of whole sequences, and are not recorded with noise or with a cache",
                         "record them into a dump of their own")


def _check_layers(asked: Asked, count: int) -> None:
    """What the config tells before anything starts; names of modules are known where the model is built."""
    if asked.stages and asked.stages[-1][1] != count:
        raise UsageError(f"the plan is for {asked.stages[-1][1]} layers, the release has {count}",
                         "give a plan for this release")
    if beyond := [number for number in asked.layers if number >= count]:
        raise UsageError(f"--layers: there is no layer {beyond[0]}, the model has {count}",
                         f"give numbers from 0 to {count - 1}")


def _records(release: Release, out: Path, asked: Asked) -> tuple[Record, ...]:
    own = release.model.dtype if release.model.dtype in DTYPES else "bf16"
    main = msgspec.structs.replace(msgspec.convert(asked, Record, from_attributes=True), folder=str(out),
                                   dtype=asked.dtype or own)
    if not asked.noise:
        return (main,)
    coarse = asked.noise_dtype or ("bf16" if own == "f32" else own)
    other = [] if coarse == main.dtype else [msgspec.structs.replace(
        main, folder=str(out / f"{NOISE}{coarse}"), dtype=coarse)]
    drawn = [msgspec.structs.replace(main, folder=str(out / f"{NOISE}{number}"), roundoff=roundoff(coarse), draw=number)
             for number in range(1, asked.noise + 1)]
    return (main, *drawn, *other)


def told_of(dump: Dump, events: tuple[str, ...]) -> Recorded:
    """What a dump holds; `events`: what else deserves to be known."""
    notes = [note for each in dump.ranks for note in each.origin.notes]
    places = {(item.dump.rank, item.entry.key): item.place.nbytes for item in dump.items if item.place is not None}
    return Recorded(folder=str(dump.folder), ranks=len(dump.ranks), entries=len(dump.items),
                    nbytes=sum(places.values()), sequences=len(dump.sequences),
                    noise=tuple(map(str, noise_folders(dump.folder))),
                    notes=tuple(dict.fromkeys([*notes, *events])))
