"""Published deployments with workers that only prefill and workers that only decode.

Tables of measurements often state the degrees of both kinds of workers and not how many there are, nor whether they
speculate. Where the deployment is published, both are known from its configuration. `published/deployments.csv` holds
configurations, no measurements: SemiAnalysisAI/InferenceX (Apache-2.0), configs/nvidia-master.yaml and
configs/deprecated, versions of 2025-11 to 2026-08.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Workers:
    """Equal workers of one kind."""

    tp: int
    """Ranks of one."""
    ep: int
    """Groups of whole experts."""
    apart: bool
    """Whether each rank has attention of its own."""
    count: int
    """How many there are."""


@dataclass(frozen=True)
class Deployment:
    """One configuration for one load."""

    precision: str
    """Of the weights, as the configuration names it."""
    version: str
    """Of the engine's image; empty: it has no number."""
    prefill: Workers
    """Those that prefill."""
    decode: Workers
    """Those that decode."""
    draft_tokens: int | None
    """Tokens that are guessed a step; 0: it does not speculate; None: it does, and how far is not stated."""
    batch: int | None
    """Sequences that each group of ranks with attention of its own decodes at most; None: not stated."""


Load = tuple[str, str, str, int, int, int]
"""Model, device, engine, prompt, answer, requests under way."""


def deployments(model: str, device: str, engine: str, load: tuple[int, int, int]) -> tuple[Deployment, ...]:
    """The published ones of a model on devices under an engine for `load`: tokens of a prompt, of an answer, requests
    under way. Empty where none is known. Names need not be spelled alike: an organisation before and a precision after
    the model's name do not count."""
    known = _known()
    letters = _letters(model)
    names = sorted((name for name in {key[0] for key in known} if name in letters), key=len)
    return tuple(known.get((names[-1], _letters(device), _letters(engine), *load), ())) if names else ()


def nearest(found: Iterable[Deployment], prefill: tuple[int, int], decode_tp: int, precision: str = "",
            version: str = "") -> tuple[Deployment, ...]:
    """Of some deployments those that agree with the degree of decoding, and then as far as any does with the precision,
    the degrees of prefill (tp, ep) and the version, the more important first."""
    kept = tuple(one for one in found if one.decode.tp == decode_tp)
    agreements: tuple[Callable[[Deployment], bool], ...] = (
        lambda one: one.precision == precision, lambda one: one.prefill.tp == prefill[0],
        lambda one: one.prefill.ep == prefill[1],
        lambda one: bool(version) and one.version == version)
    for agrees in agreements:
        kept = tuple(filter(agrees, kept)) or kept
    return kept


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


@cache
def _known() -> dict[Load, list[Deployment]]:
    made: dict[Load, list[Deployment]] = {}
    text = files(__package__).joinpath("published", "deployments.csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        one = _deployment(row)
        for requests in row["concurrency"].split():
            key = (_letters(row["model"]), _letters(row["device"]), _letters(row["engine"]), int(row["input"]),
                   int(row["output"]), int(requests))
            made.setdefault(key, []).append(one)
    return made


def _deployment(row: dict[str, str]) -> Deployment:
    sides = [Workers(tp=int(row[f"{side}_tp"]), ep=int(row[f"{side}_ep"]), apart=row[f"{side}_apart"] == "1",
                     count=int(row[f"{side}_workers"])) for side in ("prefill", "decode")]
    draft = int(row["draft_tokens"]) if row["draft_tokens"] else None
    return Deployment(precision=row["precision"], version=row["version"], prefill=sides[0], decode=sides[1],
                      draft_tokens=draft, batch=int(row["decode_batch"]) if row["decode_batch"] else None)
