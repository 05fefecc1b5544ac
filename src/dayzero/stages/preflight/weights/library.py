"""What the ledger of weights against the library's own model says, for the rules about weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dayzero.schema import Finding
from dayzero.schema.coverage import Coverage
from dayzero.stages.preflight.rule import Case, rule


def unexpected(case: Case) -> Iterator[Finding]:
    """Tensors that the library's model has no parameter for. Engines may have one, so these are warnings."""
    for line in case.coverage.destinations if case.coverage else ():
        if not line.parameter and not line.reason:
            subject = _subject(line.pattern, line.layers if line.tensors == 1 else ())
            yield Finding(
                rule="weights-unexpected", severity="warning", subject=subject,
                message=f"{subject} has no destination in {_class(case.coverage)} ({line.tensors} tensors)",
                hint="find out what reads these tensors; this class leaves them out",
                facts={"tensors": line.tensors, "layers": list(line.layers)})


def doubled(case: Case) -> Iterator[Finding]:
    """Parameters of the library's model for which the files hold more than one tensor."""
    for one in case.coverage.doubled if case.coverage else ():
        subject = _subject(one.patterns[0], one.layers if len(one.layers) == 1 else ())
        yield Finding(
            rule="weights-unexpected", severity="error", subject=subject,
            message=f"{' and '.join(one.patterns)} go to {one.parameter} of {_class(case.coverage)}: one is lost",
            hint="leave out the tensors that are not the model's",
            facts={"names": list(one.patterns), "layers": list(one.layers)})


def unfilled(case: Case) -> Iterator[Finding]:
    """Parameters of the library's model that the files leave empty. A sample of the tensors proves nothing."""
    if case.coverage is None or case.target.partial or case.release.is_incomplete:
        return
    for gap in case.coverage.unfilled:
        subject = _subject(gap.parameter, gap.layers if len(gap.layers) == 1 else ())
        yield Finding(
            rule="weights-dropped", severity="error", subject=subject,
            message=f"{_class(case.coverage)} declares {subject}, and the files fill {gap.filled:.4%} of it",
            hint="fetch the shards again; if the tensors were never published, tell the publishers",
            facts={"filled": gap.filled, "layers": list(gap.layers)})


def misshapen(case: Case) -> Iterator[Finding]:
    """Tensors that do not have the shape of the library's parameter, unless their neighbours give them away already."""
    for odd in case.coverage.misshapen if case.coverage else ():
        if odd.pattern in case.patterns.places and list(case.patterns.odd_ones(odd.pattern)):
            continue
        subject = _subject(odd.pattern, odd.layers if len(odd.layers) == 1 else ())
        yield Finding(
            rule="weights-shape", severity="error", subject=subject,
            message=f"{subject} is stored as {list(odd.file)}, but by {_class(case.coverage)} it is "
                    f"{list(odd.declared)}",
            hint="find out which is right: the header says what is stored",
            facts={"file": list(odd.file), "declared": list(odd.declared), "layers": list(odd.layers)})


def ledger(coverage: Coverage) -> dict[str, Any]:
    """The ledger as facts: totals, and one line for each pattern with its destination, or why it has none."""
    return {"source": coverage.source, "tensors": coverage.tensors, "placed": coverage.placed,
            "parameters": coverage.parameters, "unfilled": len(coverage.unfilled),
            "lines": [{"pattern": line.pattern, "tensors": line.tensors, "parameter": line.parameter,
                       "reason": line.reason} for line in coverage.destinations]}


@rule("weights-unchecked", "info")
def weights_unchecked(case: Case) -> Iterator[Finding]:
    """The tensors could not be compared with the model that the code builds.

    ## What
    The ledger of weights was asked for, and the library is not installed or has no class for the model; or the
    release's own code was to build it and could not.

    ## Why
    Without this, nothing found would look like everything found in order.

    ## Example
    A release that appeared today and brings its own code, which is not executed unless that is asked for.

    ## How to fix
    Compare with the release's own code (--trust-remote-code), install a library that knows the model, or state what the
    engine declares in [engine].
    """
    if case.coverage and case.coverage.impossible:
        yield Finding(rule="weights-unchecked", severity="info", subject="weights",
                      message=f"not compared with a library's model: {case.coverage.impossible}",
                      hint="--trust-remote-code compares with the release's own code; a newer transformers may know "
                           "the model; [engine] declares does the same for an engine")


def _subject(pattern: str, layers: tuple[int, ...]) -> str:
    return pattern.replace("{L}", str(layers[0])) if layers else pattern


def _class(coverage: Coverage | None) -> str:
    return coverage.source.partition(";")[0] if coverage else ""
