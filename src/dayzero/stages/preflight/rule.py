"""What a rule is, what it sees, and the one list of all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from dayzero.registry import Registry
from dayzero.schema import Finding, Layout, Release, Target, TensorGroup
from dayzero.schema.coverage import Coverage
from dayzero.schema.finding import Severity

from .fit import Fit, fits, least_forbidden
from .modules import Module, modules, weight_scales
from .stated import Stated, stated
from .tensors import Patterns


class Case:
    """One release on one target, with what several rules need of them, worked out once."""

    def __init__(self, release: Release, target: Target, values: bool = False,
                 coverage: Coverage | None = None) -> None:
        self.coverage = coverage
        """The ledger of weights against a library's model; None: it was not made."""
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

    @property
    def what(self) -> str:
        """The summary line."""
        return self.doc.partition("\n")[0]


RULES: Registry[Rule] = Registry("rule")
"""All rules by name."""


def add(name: str, check: Check, doc: str | None, severity: Severity = "error") -> None:
    """Register a rule. `doc` is a docstring: a summary line, then sections What, Why, Example and How to fix."""
    RULES.add(name, Rule(name=name, severity=severity, doc=inspect.cleandoc(doc or ""), check=check))


def rule(name: str, severity: Severity = "error") -> Callable[[Check], Check]:
    """Decorator of a function that is a rule; its docstring is the rule's page in the documentation."""

    def register(check: Check) -> Check:
        add(name, check, check.__doc__, severity)
        return check

    return register
