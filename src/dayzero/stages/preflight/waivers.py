"""Waivers: findings that the target accepts for a while, with a reason. They are printed and do not count."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import msgspec

from dayzero.errors import TargetError, did_you_mean
from dayzero.schema import Finding, Target, Waived
from dayzero.schema.target import Waiver

from .rule import RULES, Case, rule


def refuse_unknown(target: Target) -> None:
    """Raise TargetError for a waiver of a rule that there is not, or that is about waivers."""
    known = [each.name for each in RULES if not each.last]
    for waiver in target.waivers:
        if waiver.rule not in known:
            raise TargetError(f"{target.name}.toml: a waiver is for the rule {waiver.rule!r}, which there is not",
                              f"{did_you_mean(waiver.rule, known)}`dayzero rules` lists the names")


def divide(case: Case) -> tuple[list[Finding], list[Waived]]:
    """What was found without a valid waiver, and with one."""
    valid = [waiver for waiver in case.target.waivers if waiver.expires >= case.today]
    kept, waived = [], []
    for finding in (finding for found in case.found.values() for finding in found):
        waiver = next((waiver for waiver in valid if _meant(waiver, finding)), None)
        if waiver:
            told = msgspec.structs.asdict(finding)
            waived.append(Waived(**told, reason=waiver.reason, expires=waiver.expires))
        else:
            kept.append(finding)
    return kept, waived


def _meant(waiver: Waiver, finding: Finding) -> bool:
    return waiver.rule == finding.rule and (
        waiver.subject == finding.subject or fnmatchcase(finding.subject, waiver.subject))


def _name(waiver: Waiver) -> str:
    return waiver.rule if waiver.subject == "*" else f"{waiver.rule}: {waiver.subject}"


@rule("waiver-expired", "warning", last=True)
def waiver_expired(case: Case) -> Iterator[Finding]:
    """A waiver of the target is past its day: what it accepted counts again.

    ## What
    [[waivers]] of the target whose day in `expires` is over.

    ## Why
    A waiver is a promise to look again. What was to be repaired by then either is, and the waiver is not needed, or
    still is as it was.

    ## Example
    `expires = 2026-06-30` for an exclude list that the publisher had promised to correct in the next revision, read in
    July: the error is back, and this warning says why.

    ## How to fix
    Repair what was found and delete the waiver; or give it a later day, with a reason that still holds.
    """
    for waiver in case.target.waivers:
        if waiver.expires < case.today:
            count = sum(_meant(waiver, finding) for finding in case.found.get(waiver.rule, ()))
            again = f"{count} finding{'s' * (count != 1)} of it count{'s' * (count == 1)} again" if count else \
                "nothing is found that it would accept"
            yield Finding(
                rule="waiver-expired", severity="warning", subject=_name(waiver),
                message=f"the waiver of {_name(waiver)} expired on {waiver.expires}: {again}",
                hint="repair what is found, or give the waiver a later day" if count else "delete the waiver",
                facts={"expires": waiver.expires.isoformat(), "reason": waiver.reason, "findings": count})


@rule("waiver-unused", "info", last=True)
def waiver_unused(case: Case) -> Iterator[Finding]:
    """A waiver of the target accepts nothing.

    ## What
    [[waivers]] of the target that are still valid and for which the rule, if it was looked at, found nothing with such
    a subject.

    ## Why
    It is left over from what has been repaired, and would hide the same thing when it comes back; or its subject is
    misspelled and it never did anything.

    ## Example
    `subject = "layers.*.gate"` where reports print `model.layers.{L}.mlp.gate.weight`: the pattern has to match the
    whole subject, so it is `*.gate.weight`.

    ## How to fix
    Delete the waiver, or write its subject as the reports print it.
    """
    for waiver in case.target.waivers:
        found = case.found.get(waiver.rule)
        if found is not None and waiver.expires >= case.today and not any(_meant(waiver, each) for each in found):
            others = sorted({finding.subject for finding in found})
            yield Finding(
                rule="waiver-unused", severity="info", subject=_name(waiver),
                message=f"the waiver of {_name(waiver)} matches no finding"
                        + (f"; the rule found {others[0]}" if others else ""),
                hint="write its subject as the reports print it" if others else "delete the waiver",
                facts={"expires": waiver.expires.isoformat(), "reason": waiver.reason})
