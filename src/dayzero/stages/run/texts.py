"""Generates texts and nothing else: tokens are shown as they come. Nothing is kept for `check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from dayzero.backends import host
from dayzero.errors import DayzeroError
from dayzero.progress import SILENT, Progress
from dayzero.runtime.timeline.shares import together as overlaps
from dayzero.schema import LayoutRun, Output, RankRecord, Release, RunRecord, to_json
from dayzero.schema.store import write_atomic
from dayzero.schema.tiers import together

from .answering import Answering
from .session import Session, Shown, Way
from .wanted import Wanted

FOLDER = "stream"
"""Folder inside the one that is given: logs, timelines and the record of the last run."""
RECORD = "record.json"
"""File in it: a RunRecord."""


@dataclass(frozen=True)
class Texts:
    """What came of it."""

    prompts: tuple[str, ...]
    """Of each text: of several samples each has its own."""
    texts: tuple[str, ...]
    finishes: tuple[str, ...]
    """stop or length."""
    tokens: tuple[tuple[int, ...], ...]
    seconds_to_first: float
    """Longest of all prompts."""
    tokens_per_s: float
    """After the first token of all, of all replicas together; 0: there were no more."""
    peak_private_bytes: int
    """Of the rank that took most."""
    peak_device_bytes: int
    """Of the device that had to hold most; 0: there is none with memory of its own."""
    layout: str
    """In the end."""
    dtype: str
    """Of the weights."""
    devices: tuple[str, ...]
    """Of each rank."""
    events: tuple[str, ...]
    record: RunRecord | None = None
    """All of it as a record, where it was asked for."""


def generate(release: Release, prompts: Sequence[str], *, folder: Path, way: Way | None = None,
             wanted: Wanted | None = None, shown: Shown | None = None, ended: Shown | None = None,
             progress: Progress = SILENT) -> Texts:
    """Continue each prompt; `shown` gets texts as they come, by their number, `ended` why each is over. What happened
    is in `folder`.

    Raises NotPossible when it cannot run here, UsageError for prompts that are empty or too long, StageError when
    ranks die and cannot be replaced.
    """
    asked = (wanted or Wanted()).checked(release.model)
    with Session(release, folder / FOLDER, way or Way(), progress=progress) as session:
        made, answers = texts_of(session, prompts, asked, shown, ended)
        record = _record(session, made, answers, session.resolved(asked))
    try:
        write_atomic(folder / FOLDER / RECORD, to_json(record))
    except DayzeroError as error:  # the texts are there
        made = replace(made, events=(*made.events, f"no record was written: {error.message}"))
    return replace(made, record=record)


def texts_of(session: Session, prompts: Sequence[str], wanted: Wanted, shown: Shown | None, ended: Shown | None = None
             ) -> tuple[Texts, list[Answering]]:
    """What comes of prompts. Raises as `Session.ask`, and what one of the requests failed with."""
    taken, ids = session.resolved(wanted), session.encode(prompts)
    changed: SimpleQueue[Answering] = SimpleQueue()
    answers = session.ask(ids, taken, pieces=shown is not None, changed=changed)
    hear(answers, changed, shown, ended)
    session.settled()
    return _together(session, [prompt for prompt in prompts for _ in range(taken.samples)], answers), answers


def hear(answers: Sequence[Answering], changed: SimpleQueue[Answering], shown: Shown | None = None,
         ended: Shown | None = None) -> None:
    """Until all of them are there. Raises what one of them failed with; the others are given up then."""
    left = {id(each): number for number, each in enumerate(answers)}
    try:
        while left:
            one = changed.get()
            if (number := left.get(id(one))) is None:
                continue
            piece = one.take()
            if one.finish:
                del left[id(one)]
            if piece and shown is not None:
                shown(number, piece)
            if one.finish and ended is not None:
                ended(number, one.finish)
    except BaseException:
        for one in answers:
            one.cancel()
        raise


def _together(session: Session, prompts: Sequence[str], answers: Sequence[Answering]) -> Texts:
    """What a session made of prompts."""
    rows, shares = [each.tokens for each in answers], list(session.shares.values())
    later = sum(map(len, rows)) - len(rows)
    first = min(each.answer.first for each in answers)
    seconds = max(each.answer.last for each in answers) - first
    return Texts(
        prompts=tuple(prompts), texts=tuple(each.text for each in answers),
        finishes=tuple(each.finish for each in answers), tokens=tuple(rows),
        seconds_to_first=max(each.answer.first - each.answer.began for each in answers),
        tokens_per_s=later / seconds if later and seconds else 0.0,
        peak_private_bytes=max((share.peak_private_bytes for share in shares), default=0),
        peak_device_bytes=max((share.peak_device_bytes for share in shares), default=0), layout=session.layout.text,
        dtype=session.dtype, devices=tuple(share.device for share in shares), events=session.events)


def _record(session: Session, made: Texts, answers: Sequence[Answering], wanted: Wanted) -> RunRecord:
    shares = session.shares
    ranks = tuple(RankRecord(
        rank=rank, device=share.device, layers=share.layers, parameters=share.parameters,
        weight_bytes=share.weight_bytes, peak_private_bytes=share.peak_private_bytes,
        base_private_bytes=share.base_private_bytes, load_seconds=share.load_seconds, exit_code=None, tiers=share.tiers)
        for rank, share in shares.items())
    outputs = tuple(Output(prompt=prompt, tokens=tokens, text=text, finish=finish) for prompt, tokens, text, finish in
                    zip(made.prompts, made.tokens, made.texts, made.finishes, strict=True))
    ordered = sorted(each.answer.first - each.answer.began for each in answers)
    run = LayoutRun(
        layout=session.layout, world_size=session.layout.world_size, dtype=session.dtype, seed=wanted.sampling.seed,
        sampling=wanted.sampling, ranks=ranks, outputs=outputs, ttft_s=ordered[len(ordered) // 2],
        tpot_s=len(outputs) / made.tokens_per_s if made.tokens_per_s else 0.0, tpot_all_s=(),
        tokens_per_s=made.tokens_per_s, repeat_identical=None, dump="",
        prompt_tokens=tuple(len(each.answer.asked.tokens) for each in answers), events=made.events,
        losses=session.losses, tiers=together([each.tiers for each in ranks], session.layout),
        overlap=overlaps([share.overlap for share in shares.values()]))
    facts = next((share.environment for share in shares.values()), {})
    machine = {"processor": " ".join(host.identity()).strip(), "cores": str(host.cores())}
    return RunRecord(runs=(run,), prompts=made.prompts, max_new_tokens=wanted.max_new_tokens,
                     environment={**facts, **machine})
