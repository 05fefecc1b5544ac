"""Predictions for tables of measured training steps: which model a point is about, how it was trained, how long a step
takes.

Facts that a table has no column for are looked for in the model's name and the notes, as words and as `key=value`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from dayzero.data.devices import known_device
from dayzero.data.published import published, stated_models
from dayzero.data.stacks import counted, stack
from dayzero.data.training import Generation, generation
from dayzero.errors import DayzeroError, NotPossible, UsageError
from dayzero.placement.decoder import plain_decoder
from dayzero.schema import Cluster, Device, Link, ModelSpec
from dayzero.score_setup import stated_date, stated_facts, stated_setup
from dayzero.stages.plan.training import Setup, Work, seconds, token_flops, work
from dayzero.stages.plan.training.memory import peak_bytes

COLUMNS = ("row", "step_time_s", "step_time_low_s", "step_time_high_s", "tflops_per_gpu", "tokens_per_sec_per_gpu",
           "peak_mem_gib", "fits", "reason")
"""Of the predictions of training."""
NEEDED = ("source", "model", "gpu", "num_gpus", "tp", "pp", "ep", "dp", "mbs", "gbs", "seq", "precision", "notes")
"""Columns that a table of training points has to have; vp, cp and others are read where they are there."""
GIB = 2**30
UNEVEN = 1.25
"""Of activations, at most, where tokens choose experts: the rank with the busiest ones."""
GAPS = 0.1
"""Of what is allocated and freed within a step, at most: what an allocator loses between blocks."""
_WORDS = re.compile(r"(?<![a-z])[a-z]?\d+(?:\.\d+)?[bmt](?![a-z])|\d+(?:\.\d+)?|[a-z]+")
"""Words of a name, numbers, and sizes with their unit, of which one letter says what they count (`a3b`)."""


@dataclass(frozen=True)
class Point:
    """A row that says enough."""

    row: int
    """Data row of the table, from 0."""
    model: ModelSpec
    """What was trained."""
    setup: Setup
    """How."""
    cluster: Cluster
    """On what."""
    drafts: int
    """Layers of multi-token prediction that were trained along."""
    told: str = ""
    """What the row says of its source."""

    @property
    def generation(self) -> Generation:
        """What the devices reach."""
        return generation(self.cluster.device.arch)

    def flops(self) -> float:
        """Operations for one token, as the software of the row counts them."""
        one, own = counted(self.told, stated_date(self.told)), self.setup
        gated = one is None or self.model.model_type not in one.ungated
        return token_flops(self.model, own.sequence, drafts=self.drafts, frozen=own.frozen, gated=gated,
                           windows=one is None or one.windows)


@dataclass(frozen=True)
class Trained:
    """What is predicted of one point."""

    row: int
    """Data row of the table, from 0."""
    step: float | None = None
    """Seconds of a step."""
    low: float | None = None
    """Nine tenths of steps should take more than this and less than `high`."""
    high: float | None = None
    """See `low`."""
    tflops: float | None = None
    """Model operations of a device, 1e12 a second."""
    rate: float | None = None
    """Tokens a second of a device."""
    peak: float | None = None
    """GiB on the fullest device."""
    fits: bool | None = None
    """Whether that is less than the device has; None with a reason: it cannot be told, or there is no prediction."""
    reason: str = ""
    """Why there is no prediction, or why it cannot be told whether it fits."""

    def cells(self) -> tuple[str, ...]:
        """In the order of COLUMNS."""
        numbers = (self.step, self.low, self.high, self.tflops, self.rate, self.peak)
        return (str(self.row), *("" if one is None else f"{one:.6g}" for one in numbers),
                "" if self.fits is None else str(self.fits).lower(), self.reason)


class Trainable:
    """Models by the names that tables of training use: published releases, sizes that notes state, known sizes."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Raises UsageError for a folder that is not there."""
        self._paths: dict[str, Path] = {}
        for folder in folders:
            if not folder.is_dir():
                raise UsageError(f"{folder} is not a folder of releases", "give the one that holds org__name folders")
            for path in sorted(folder.iterdir()):
                if path.is_dir():
                    self._paths.setdefault(squashed(path.name.split("__", 1)[-1]), path)
        self._read: dict[Path, tuple[ModelSpec, int]] = {}

    def find(self, row: Mapping[str, str]) -> tuple[ModelSpec, int]:
        """(the model of a row, its layers of multi-token prediction). Raises NotPossible when nothing says what it
        is."""
        facts = stated_facts(f"{row['model']} {row['notes']}")
        if {"hidden", "layers", "heads"} <= facts.keys():
            return plain_decoder(row["model"], **facts), 0
        name = squashed(re.sub(r"\(.*?\)", "", row["model"]))
        if name in stated_models():
            return plain_decoder(row["model"], **stated_models()[name]), 0
        known = {**{squashed(path.stem): path for path in published()}, **self._paths}
        told = {name: distance for name, distance in ((key, far(row["model"], key)) for key in known)
                if distance is not None}
        if not told:
            raise NotPossible(f"no release of {row['model']}", "")
        return self._model(known[min(told, key=lambda key: told[key])])

    def _model(self, path: Path) -> tuple[ModelSpec, int]:
        from dayzero.stages.read import read

        if path not in self._read:
            release = read(str(path), metadata_only=True)
            config = release.config
            text = config.get("text_config", config)
            drafts = text.get("num_nextn_predict_layers", 0) if isinstance(text, dict) else 0
            self._read[path] = release.model, drafts if isinstance(drafts, int) else 0
        return self._read[path]


def squashed(name: str) -> str:
    """A name in small letters, with `-` for all that is no letter, digit or dot."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def far(name: str, squashed_release: str) -> int | None:
    """How much a release's name has beside the words and numbers of `name`, in their order; a number that goes on after
    a dot counts ten. None: it lacks one of them."""
    at = beside = 0
    for word in _WORDS.findall(re.sub(r"\(.*?\)", "", name.lower())):
        number, size = word[-1].isdigit(), any(letter.isdigit() for letter in word)
        whole = rf"(?<!\d){re.escape(word)}(?!\d)" if number else rf"(?<![\da-z.]){re.escape(word)}(?![\da-z])"
        pattern = whole if size else "-?".join(word)
        found = re.compile(pattern).search(squashed_release, at)
        if not found:
            return None
        beside, at = beside + found.start() - at, found.end()
        if number and squashed_release[at : at + 1] == ".":
            beside += 10
    return beside + len(squashed_release) - at


def point(index: int, row: Mapping[str, str], models: Trainable) -> Point:
    """What a row says. Raises NotPossible, or LayoutError for degrees that do not go together."""
    device = known_device(row["gpu"])
    if device is None:
        raise NotPossible(f"the device is not known: {row['gpu'] or 'not stated'}", "")
    model, drafts = models.find(row)
    setup = stated_setup(row)
    if not setup.drafts or setup.frozen:
        drafts = 0
    return Point(index, model, setup, cluster_of(device, setup.layout.world_size), drafts, row["source"])


def cluster_of(device: Device, world: int) -> Cluster:
    """So many devices in nodes as large as their fastest link allows and divides them, joined by the network of their
    generation."""
    most = max((link.devices for link in device.links), default=1) or world
    node = max(size for size in range(1, min(most, world) + 1) if world % size == 0)
    known = generation(device.arch)
    network = Link(name="network", devices=0, bandwidth=known.network, latency=1e-5, source=known.source)
    return Cluster(device=device, devices_per_node=node, nodes=world // node, memory_utilization=1.0, network=network)


def predicted(one: Point, made: Work | None = None) -> Trained:
    """Time, rate and memory of a point."""
    known = one.generation
    made = made or work(one.model, one.setup, one.cluster, drafts=one.drafts)
    step = seconds(made, one.setup, known.reached).seconds
    rate = one.setup.tokens / step / one.setup.layout.world_size
    flops = one.flops()
    found = room(one)
    wide = known.within(one.model.mixes_experts)
    return Trained(row=one.row, step=step, low=step / wide, high=step * wide, tflops=rate * flops / 1e12, rate=rate,
                   peak=found.peak, fits=found.fits, reason=found.reason)


def peak(row: Mapping[str, str], models: Trainable) -> Room:
    """What a row of a table of memory needs: its precision is in `quant`, batch and sequence are in the notes as
    `mbs=1 gbs=64 seq=4096 cp=1`. Raises NotPossible, LayoutError."""
    stated = dict(re.findall(r"\b(mbs|gbs|seq|cp|vp)=(\d+)", row["notes"]))
    one = point(0, {"cp": "", "vp": "", "gbs": "", "mbs": "", "seq": "", **row, **stated, "precision": row["quant"]},
                models)
    size = _gib(row.get("gpu_mem_gib", ""))
    if size:
        device = msgspec.structs.replace(one.cluster.device, memory_bytes=int(size * GIB))
        one = dataclasses.replace(one, cluster=msgspec.structs.replace(one.cluster, device=device))
    return room(one)


def _gib(cell: str | None) -> float | None:
    try:
        return float(cell or "")
    except ValueError:
        return None


class Room(NamedTuple):
    """GiB on the fullest device."""

    peak: float
    """Expected."""
    least: float
    """With as little as the stack can be told to keep."""
    most: float
    """With as much as it can be told to keep, experts that are loaded unevenly, and gaps between blocks."""
    fits: bool | None
    """Whether the device has that; None: it has the least but not the most."""

    @property
    def reason(self) -> str:
        """Why it cannot be told."""
        return "" if self.fits is not None else (
            f"whether it fits cannot be told: {self.least:.0f} to {self.most:.0f} GiB, by the precision of gradients, "
            "moments and logits, how evenly experts are loaded, and gaps between blocks")


def room(one: Point) -> Room:
    """What a point needs, and whether its device has that."""
    usual, memory = stack(one.told), one.cluster.device.memory_bytes / GIB
    least, peak, most = (_sizes(one, changes) for changes in (usual.least, {}, usual.most))
    low = max(sum(causes.values()) - causes["fragmentation"] for causes in least) / GIB
    high = max(sum(causes.values()) + _more(one, causes) for causes in most) / GIB
    return Room(max(sum(causes.values()) for causes in peak) / GIB, low, high,
                True if high <= memory else False if low > memory else None)


def _sizes(one: Point, changes: Mapping[str, int]) -> tuple[dict[str, int], ...]:
    setup = msgspec.structs.replace(one.setup, **changes)
    return peak_bytes(one.model, setup, one.cluster, one.drafts)


def _more(one: Point, causes: Mapping[str, int]) -> float:
    """Bytes that a stage may need beside the expected ones."""
    uneven = (UNEVEN - 1) * causes["activations"] if one.model.mixes_experts else 0.0
    passing = causes["activations"] + causes["logits"] + causes["communication"]
    return uneven + GAPS * (passing + uneven) - causes["fragmentation"]


def predict_training(rows: Sequence[Mapping[str, str]], folders: Sequence[Path]) -> Iterator[Trained]:
    """One prediction for each row, in order. Raises UsageError for a folder that is not there."""
    models = Trainable(folders)
    for index, row in enumerate(rows):
        try:
            yield predicted(point(index, row, models))
        except NotPossible as none:
            yield Trained(row=index, reason=none.reason)
        except DayzeroError as error:
            yield Trained(row=index, reason=error.message)
