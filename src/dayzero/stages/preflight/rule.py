"""What a rule is, what it sees, and the one list of all of them."""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import msgspec

from dayzero.errors import UsageError, did_you_mean
from dayzero.registry import Registry
from dayzero.schema import Finding, Layout, Release, Target, TensorGroup
from dayzero.schema.consumption import Consumption
from dayzero.schema.coverage import Coverage
from dayzero.schema.finding import Severity
from dayzero.text import one_line

from .layout.fit import Fit, fits, least_forbidden
from .quant.modules import Module, modules, weight_scales
from .quant.stated import Stated, stated
from .weights.tensors import Patterns


class Case:
    """One release on one target, with what several rules need of them, worked out once."""

    def __init__(self, release: Release, target: Target, values: bool = False,
                 coverage: Coverage | None = None, consumption: Consumption | None = None,
                 today: datetime.date | None = None) -> None:
        self.today = today or datetime.date.today()
        """The day that waivers expire by."""
        self.found: dict[str, list[Finding]] = {}
        """For the rules that are checked last: what the others found, waived or not, by the name of the rule."""
        self.coverage = coverage
        """The ledger of weights against a library's model; None: it was not made."""
        self.consumption = consumption
        """The keys that a library's code reads; None: that was not recorded."""
        self.values = values
        """Whether values of small tensors are to be read, not only headers."""
        self.release = release
        self.model = release.model
        self.target = target

    @cached_property
    def fits(self) -> tuple[Fit, ...]:
        """Memory of the layouts that the target asks for, or of the best one for the whole cluster."""
        return fits(self.model, self.target)

    @cached_property
    def nearest(self) -> Layout | None:
        """Where the target asks for no layout and the whole cluster has no legal one: the one that is closest to it."""
        return None if self.target.layouts or self.fits else least_forbidden(self.model, self.target)

    @cached_property
    def patterns(self) -> Patterns:
        """The tensors by name pattern."""
        return Patterns(self.release)

    @cached_property
    def stated(self) -> Stated:
        """What the config says of quantisation."""
        return stated(self.model.quantization, self.release.config)

    @cached_property
    def modules(self) -> list[Module]:
        """The weight matrices with the names of their modules; of a config alone none."""
        return modules(self.release)

    @cached_property
    def scales(self) -> dict[str, list[TensorGroup]]:
        """The scales of weights, by the name pattern of their module."""
        return weight_scales(self.release)

    @property
    def has_tensors(self) -> bool:
        """False for a config alone: rules about weights and files then have nothing to say."""
        return self.release.tensors.count > 0


Check = Callable[[Case], Iterable[Finding]]


@dataclass(frozen=True)
class Rule:
    """One thing that preflight looks at."""

    name: str
    """Name that findings carry; part of the public interface."""
    severity: Severity
    """Usual severity of its findings; a finding can be milder."""
    doc: str
    """Its documentation: a summary line and sections, in Markdown."""
    check: Check
    """What it does."""
    last: bool = False
    """Whether it is about what the other rules found."""

    @property
    def what(self) -> str:
        """The summary line."""
        return self.doc.partition("\n")[0]


RULES: Registry[Rule] = Registry("rule")
"""All rules by name."""


def add(name: str, check: Check, doc: str | None, severity: Severity = "error", *, last: bool = False) -> None:
    """Register a rule. `doc` is a docstring: a summary line, then sections What, Why, Example and How to fix."""
    RULES.add(name, Rule(name=name, severity=severity, doc=inspect.cleandoc(doc or ""), last=last,
                         check=lambda case: map(_on_lines, check(case))))


def _on_lines(finding: Finding) -> Finding:
    """The finding with each of its texts on one printable line: the names in them are a release's."""
    texts = {field: getattr(finding, field) for field in ("subject", "message", "hint")}
    lines = {field: one_line(text) for field, text in texts.items()}
    return finding if lines == texts else msgspec.structs.replace(finding, **lines)


def rule(name: str, severity: Severity = "error", *, last: bool = False) -> Callable[[Check], Check]:
    """Decorator of a function that is a rule; its docstring is the rule's page in the documentation."""

    def register(check: Check) -> Check:
        add(name, check, check.__doc__, severity, last=last)
        return check

    return register


def chosen(select: Iterable[str] = (), ignore: Iterable[str] = ()) -> tuple[Rule, ...]:
    """The rules that `select` names (nothing: all) and `ignore` does not. Both hold names of rules, and prefixes of
    names that end in a hyphen, like `quant-`. Raises UsageError for an unknown one, and when no rule is left."""
    selected, ignored = _named(select) or set(RULES.names()), _named(ignore)
    if not selected - ignored:
        raise UsageError("every rule that is selected is ignored too", "select or ignore fewer rules")
    return tuple(rule for rule in RULES if rule.name in selected - ignored)


def _named(words: Iterable[str]) -> set[str]:
    names, known = set[str](), RULES.names()
    prefixes = sorted({f"{name.partition('-')[0]}-" for name in known})
    for word in words:
        matching = [name for name in known if name == word or (word.endswith("-") and name.startswith(word))]
        if not matching or word == "-":
            near = did_you_mean(word, (*known, *prefixes))
            raise UsageError(f"no rule is named {word!r}",
                             f"{near}`dayzero rules` lists the names; a prefix ends in a hyphen: {', '.join(prefixes)}")
        names.update(matching)
    return names
