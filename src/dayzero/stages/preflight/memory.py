"""Rules about memory: do the weights fit, and does everything else fit beside them."""

from __future__ import annotations

from collections.abc import Iterator

from dayzero.schema import Finding
from dayzero.units import format_bytes

from .fit import Fit
from .rule import Case, rule


def _finding(name: str, fit: Fit, need: int, what: str, hint: str) -> Finding:
    layout = f"the best layout of all ({fit.layout.text})" if fit.searched else fit.layout.text
    return Finding(
        rule=name, severity="error", subject=fit.layout.text,
        message=f"{layout}: {what} need {format_bytes(need)} of a device, {format_bytes(fit.usable)} may be used",
        hint=hint, facts={"need_bytes": need, "usable_bytes": fit.usable, "layout": fit.layout.text, **fit.causes})


@rule("memory-weights")
def memory_weights(case: Case) -> Iterator[Finding]:
    """The weights alone do not fit.

    ## What
    One device's share of the weights is larger than the memory that may be used (`memory_utilization` of it): under a
    layout that was asked for, or under every legal layout of the whole cluster.

    ## Why
    Loading ends in an out-of-memory error after most of the files have been read.

    ## Example
    1.56 TB of weights on eight devices of 141 GB: 195 GB for each.

    ## How to fix
    Take more devices, a layout that cuts more of the weights (larger tp or pp, ep for experts), or a quantised release.
    """
    for fit in case.fits:
        if fit.fixed > fit.usable:
            yield _finding("memory-weights", fit, fit.fixed, "the weights",
                           "take more or larger devices, a layout that cuts more, or a quantised release")


@rule("memory-total")
def memory_total(case: Case) -> Iterator[Finding]:
    """The weights fit, but not together with cache and activations.

    ## What
    Weights, cache and state of the workload's sequences at full length, activations, logits and buffers together need
    more than may be used of a device.

    ## Why
    The engine starts and then refuses long prompts, evicts requests, or runs out of memory under load.

    ## Example
    Weights of 129 GB on a device of 141 GB leave no room for one sequence of 128,000 tokens.

    ## How to fix
    Lower concurrency, length or max_batched_tokens in [workload], raise memory_utilization, or take more devices.
    """
    for fit in case.fits:
        if fit.fixed <= fit.usable < fit.total:
            parts = ", ".join(f"{cause} {format_bytes(size)}" for cause, size in fit.causes.items() if size)
            yield _finding("memory-total", fit, fit.total, f"all together ({parts})",
                           "lower concurrency, length or max_batched_tokens, or take more devices")
