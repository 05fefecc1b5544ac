"""Predictions for tables of measured points: which release a point is about, how it was run, and what is predicted.

A point's model is found by `org__name`, then by its name alone, then by the family that its precision variant belongs
to: the name without words for precision, training stage and date. The point's own precision wins over the config's.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dayzero import score_serve as serving
from dayzero import score_train as training
from dayzero.data import engine, engines
from dayzero.data.allocation import allocation, allocations
from dayzero.data.devices import known_device
from dayzero.data.efficiency import Efficiency
from dayzero.data.engines import NEUTRAL
from dayzero.data.precisions import Precision, family, precision, variant
from dayzero.errors import DayzeroError, NotPossible, UsageError
from dayzero.placement import split_layers, stage_bytes
from dayzero.placement.held import held_bytes
from dayzero.placement.pool import Pool, Settings, pool
from dayzero.placement.precision import recast, with_kv_heads
from dayzero.schema import Device, Layout, ModelSpec
from dayzero.schema.allocation import Allocation
from dayzero.schema.hardware import LEAST_RATE
from dayzero.schema.store import write_atomic
from dayzero.score_report import Errors, errors

COLUMNS = ("row", "weights_gib_per_gpu", "kv_cache_tokens", "fits", "reason", "peak_gib_per_gpu")
"""Of the predictions of memory."""
NEEDED = {
    "memory": ("model", "gpu", "gpu_mem_gib", "tp", "pp", "ep", "dp", "quant", "gpu_memory_utilization",
               "max_model_len", "notes", "framework", "source"),
    "train": training.NEEDED,
    "serve": serving.NEEDED,
}
"""Columns that a table of points has to have, by kind."""
GIB = 2**30
_NOTHING = ("", "nan", "none")
_NEAR = 0.1
_MOST = 2**40
_CACHE = re.compile(r"(?:kv(?: cache)?[ :]*(?P<after>fp8\w*))|(?:(?P<before>fp8\w*) kv)", re.IGNORECASE)
_STEP = re.compile(r"(?:max-num-batched-tokens|mnbt|mnb)[ =:]*(\d+)", re.IGNORECASE)
_SEQUENCES = re.compile(r"(?:max[-_]num[-_]seqs|mns)[ =:]*(\d+)", re.IGNORECASE)
_STATES = re.compile(r"mamba ratio[ =:]*(\d*\.\d+|\d+)", re.IGNORECASE)
_DRAFT = re.compile(r"\b(dspark|dflash|eagle\d?|draft|medusa|mtp|nextn)", re.IGNORECASE)
_ELSEWHERE = re.compile(r"cpu[- ]?offload|weights? offload|offload\w* (?:of |to )?(?:weights|cpu)|on (?:cpu|ssd|nvme)|"
                        r"gguf|layer streaming", re.IGNORECASE)
_CONTEXT = re.compile(r"\bdcp ?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Prediction:
    """What is predicted of one point."""

    row: int
    """Data row of the table, from 0."""
    weights: float | None = None
    """GiB of weights on a device."""
    tokens: int | None = None
    """Tokens that the cache holds."""
    fits: bool | None = None
    """Whether the engine starts; None with a reason: it cannot be told."""
    reason: str = ""
    """Why there is no prediction, why it does not fit or why that cannot be told."""
    peak: float | None = None
    """GiB on the fullest device while training."""

    def cells(self) -> tuple[str, ...]:
        """In the order of COLUMNS."""
        return (str(self.row), "" if self.weights is None else f"{self.weights:.4f}",
                "" if self.tokens is None else str(self.tokens), "" if self.fits is None else str(self.fits).lower(),
                self.reason, "" if self.peak is None else f"{self.peak:.4f}")


class Models:
    """The releases of some folders, found by the names that points use, and read once."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Raises UsageError for a folder that is not there."""
        for folder in folders:
            if not folder.is_dir():
                raise UsageError(f"{folder} is not a folder of releases", "give the one that holds org__name folders")
        self.trainable = training.Trainable(folders)
        self._paths: dict[str, Path] = {}
        for folder in folders:
            for path in sorted(folder.iterdir()):
                if path.is_dir():
                    self._paths.setdefault(path.name.lower(), path)
        self._read: dict[Path, ModelSpec] = {}

    def find(self, name: str, wanted: Precision | None) -> Path | None:
        """The folder of the release that a name is about; of several of a family that of the wanted precision."""
        full = name.lower().replace("/", "__", 1)
        if full in self._paths:
            return self._paths[full]
        for short in _spellings(name):
            exact = [path for key, path in self._paths.items() if _spellings(key.split("__", 1)[-1])[0] == short]
            if exact:
                return exact[0]
        wanted_words = family(_spellings(name)[0])
        related = [path for path in self._paths.values() if family(path.name.split("__", 1)[-1]) == wanted_words]
        same = [path for path in related if wanted and precision(path.name) == wanted]
        plain = [path for path in related if precision(path.name) is None]
        return next(iter((*same, *plain, *related)), None)

    def model(self, path: Path) -> ModelSpec:
        """The model of a release. Raises ReleaseError."""
        from dayzero.stages.read import read

        if path not in self._read:
            self._read[path] = read(str(path), metadata_only=True).model
        return self._read[path]


def _spellings(name: str) -> list[str]:
    """A name without its organisation and remarks; where it names two (`A/B` at the end) the first."""
    name = re.sub(r"\(.*?\)", "", name).strip()
    last = name.rsplit("/", 1)
    shorts = [last[-1]] if len(last) == 1 or len(last[-1]) > 3 else [last[0], last[-1]]
    return [short.strip().lower().replace(" ", "-").replace("_", "-") for short in shorts]


def predict_memory(rows: Sequence[Mapping[str, str]], models: Models) -> Iterator[Prediction]:
    """One prediction for each row, in order."""
    for number, row in enumerate(rows):
        try:
            yield _predicted(number, row, models)
        except NotPossible as none:
            yield Prediction(row=number, reason=none.reason)
        except DayzeroError as error:
            yield Prediction(row=number, reason=error.message)


def _predicted(number: int, row: Mapping[str, str], models: Models) -> Prediction:
    kind = row.get("kind", "serving")
    if kind.startswith("training"):
        room = training.peak(row, models.trainable)
        return Prediction(row=number, peak=room.peak, fits=room.fits, reason=room.reason)
    if kind != "serving":
        raise NotPossible("only memory of serving and training is predicted", "")
    elsewhere = _ELSEWHERE.search(f"{row['framework']} {row['quant']} {row['notes']}")
    if elsewhere:
        raise NotPossible(f"not all weights are on the device: {elsewhere[0]}", "")
    stated = precision(_CACHE.sub("", row["quant"]))
    path = models.find(row["model"], stated)
    if path is None:
        raise NotPossible(f"no release of {row['model']}", "")
    name, version = _engine(row)
    rules, layout, device = allocation(name, version), _layout(row), _device(row)
    model = _model(models.model(path), row["model"], stated, version)
    if rules is None or device is None:
        return _weights_only(number, model, layout, rules, device)
    profile = engine(name if name in {one.name for one in engines()} else NEUTRAL)
    told = _told(number, pool(model, layout, profile, rules, device, _settings(row)), rules)
    draft = _DRAFT.search(f"{row['model']} {row['notes']}")
    if draft and told.fits:
        return dataclasses.replace(told, tokens=None, reason=f"speculates ({draft[0]}): the draft's weights, cache and "
                                                             "states are not known, and come out of the pool")
    return told


def _weights_only(number: int, model: ModelSpec, layout: Layout, rules: Allocation | None, device: Device | None
                  ) -> Prediction:
    """Where the engine or the device is not known: what the weights take, and that they do not fit if they do not."""
    if rules:
        first = split_layers(model, layout.pp, rules.longer_stages)[0]
        weights = held_bytes(model, layout, engine(NEUTRAL), rules, range(*first))
        return Prediction(row=number, weights=weights / GIB, reason="the memory of the device is not stated")
    stages = [stage_bytes(model, layout, engine(NEUTRAL), range(*stage)) for stage in split_layers(model, layout.pp)]
    over = device is not None and max(stages) > device.memory_bytes
    reason = "the weights do not fit" if over else "how the engine divides memory is not known"
    return Prediction(row=number, weights=stages[0] / GIB, fits=False if over else None, reason=reason)


def _told(number: int, made: Pool, rules: Allocation) -> Prediction:
    least = made.least
    starts = made.starts(rules)
    reason = ""
    if not made.holds(rules):
        reason = (f"{-least.pool / GIB:.2f} GiB are missing" if least.pool <= 0 else
                  f"{least.room.tokens} tokens of cache are less than a sequence of {made.length}")
    elif not starts and made.spare is not None:
        reason = (f"beside its pool it takes {made.beside.least / GIB:.2f} to {made.beside.most / GIB:.2f} GiB, and "
                  f"{made.spare / GIB:.2f} GiB are left")
    return Prediction(row=number, weights=made.stages[0].weights / GIB, tokens=least.room.tokens, fits=starts,
                      reason=reason)


def _model(model: ModelSpec, name: str, stated: Precision | None, version: str) -> ModelSpec:
    """The model in the precision that the point states."""
    published = variant(_spellings(name)[0])
    if published and published.kv_heads and _before(version, published.until):
        model = with_kv_heads(model, published.kv_heads)
    wanted = stated or precision(name) or (precision(published.scheme) if published else None)
    if published and wanted and wanted.scheme != published.scheme:
        published = None
    return recast(model, wanted, published) if wanted else model


def _before(version: str, day: str) -> bool:
    """Whether a version, if it is a date, is before that day; a version number below 1 of the first years counts."""
    date = re.search(r"20\d\d-\d\d(-\d\d)?", version)
    if date:
        return date[0] <= day[: len(date[0])]
    return bool(re.search(r"\b0\.[0-5]\.", version))


def _engine(row: Mapping[str, str]) -> tuple[str, str]:
    """(engine, version or date)."""
    text = row["framework"].strip().lower()
    name = next((known for known in allocations() if re.match(rf"{known}\b(?!-)", text)), "")
    version = text[len(name):] if name else text
    if not re.search(r"\d", version):
        dated = re.search(r"20\d\d-\d\d-\d\d", row["source"])
        version = dated[0] if dated else version
    return name, version


def _layout(row: Mapping[str, str]) -> Layout:
    stated = {key: _number(row, key) for key in ("tp", "pp", "ep", "dp")}
    degrees = {key: int(degree) for key, degree in stated.items() if degree is not None}
    if not degrees:
        raise NotPossible("the layout is not stated", "")
    context = _CONTEXT.search(row["notes"])
    return Layout(**degrees, cp=int(context[1]) if context else 1)


def _number(row: Mapping[str, str], key: str) -> float | None:
    """The number in a cell; None: it is empty. Raises NotPossible for what is no number of a sensible size."""
    if row[key].strip().lower() in _NOTHING:
        return None
    try:
        value = float(row[key])
    except ValueError:
        raise NotPossible(f"{key} is not a number: {row[key][:40]}", "") from None
    if not 0 <= value <= _MOST:
        raise NotPossible(f"{key} is not a sensible number: {row[key][:40]}", "")
    return value


def _device(row: Mapping[str, str]) -> Device | None:
    """The device, with the memory that the vendor's tool counts: of a known device its own figure, unless the stated
    one differs by more than a tenth. None: neither is known."""
    size = _number(row, "gpu_mem_gib")
    stated = None if size is None else int(size * GIB)
    known = known_device(row["gpu"])
    if stated is None or (known and abs(stated / known.memory_bytes - 1) <= _NEAR):
        return known
    unnamed = Device(name="unnamed", vendor="", arch="", memory_bytes=stated, memory_bandwidth=LEAST_RATE, flops={})
    return msgspec.structs.replace(known or unnamed, memory_bytes=stated)


def _settings(row: Mapping[str, str]) -> Settings:
    notes = row["notes"]
    share = re.match(r"0?\.\d+|1\.0*\b", row["gpu_memory_utilization"].strip())
    cache = _CACHE.search(f"{row['quant']}; {notes}")
    step, sequences, states = _STEP.search(notes), _SEQUENCES.search(notes), _STATES.search(notes)
    length = _number(row, "max_model_len")
    return Settings(
        utilization=float(share[0]) if share else None,
        cache_dtype=(cache["after"] or cache["before"]).lower() if cache else "auto",
        length=None if length is None else int(length),
        tokens=int(step[1]) if step else None, sequences=int(sequences[1]) if sequences else None,
        state_share=float(states[1]) if states else None)


def kind_of(path: Path) -> str:
    """What a table's points are of: the kind that it has all columns for. Raises UsageError where that is none or
    several."""
    header = set(next(iter(_rows(path)), {}))
    if not header:
        raise UsageError(f"{path} has no rows", "give a CSV file with a header and a point in each further line")
    kinds = [kind for kind, columns in NEEDED.items() if set(columns) <= header]
    if len(kinds) != 1:
        lacking = {kind: sorted(set(columns) - header) for kind, columns in NEEDED.items()}
        kind = min(lacking, key=lambda name: len(lacking[name]))
        raise UsageError(f"{path} lacks the columns {', '.join(lacking[kind])} of a table of {kind} points" if not kinds
                         else f"{path} may be a table of {' or '.join(kinds)} points",
                         f"give --kind as one of {', '.join(NEEDED)}; docs/score.md has their columns")
    return kinds[0]


def read_points(path: Path, kind: str = "memory") -> list[dict[str, str]]:
    """The rows of a table. Raises UsageError when it cannot be read or lacks a column."""
    rows = _rows(path)
    if not rows:
        raise UsageError(f"{path} has no rows", "give a CSV file with a header and a point in each further line")
    missing = set(NEEDED[kind]) - set(rows[0] if rows else {})
    if missing:
        raise UsageError(f"{path} lacks the columns {', '.join(sorted(missing))}", f"give a table of {kind} points")
    return [{key: value or "" for key, value in row.items() if isinstance(key, str)} for row in rows]


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read {path}: {why}", "give a CSV file with a header") from None


Predicted = Sequence[Prediction] | Sequence[serving.Served] | Sequence[training.Trained]


def score(points: Path, releases: Sequence[Path], out: Path, kind: str, known: Efficiency | None = None
          ) -> tuple[Predicted, list[Errors]]:
    """Write the predictions for a table of points; return them, and how far they are from what was measured. `known`:
    the figures of times of serving, instead of the shipped ones. Raises UsageError, NotPossible."""
    if kind not in NEEDED:
        raise NotPossible(f"points of {kind} are not scored", f"give --kind as one of {', '.join(NEEDED)}")
    rows = read_points(points, kind)
    made: Predicted
    columns: tuple[str, ...]
    if kind == "train":
        made, columns = list(training.predict_training(rows, releases)), training.COLUMNS
    elif kind == "serve":
        made, columns = list(serving.predict_serving(rows, Models(releases), known)), serving.COLUMNS
    else:
        made, columns = list(predict_memory(rows, Models(releases))), COLUMNS
    lines = [columns, *(one.cells() for one in made)]
    text = "".join(",".join(_quoted(cell) for cell in line) + "\n" for line in lines)
    write_atomic(out, text.encode())
    return made, errors(rows, [dict(zip(columns, one.cells(), strict=True)) for one in made], kind)


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if re.search('[",\n]', cell) else cell
