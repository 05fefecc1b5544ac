"""Rules about the engine."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dayzero.errors import did_you_mean
from dayzero.schema import Finding, Layout
from dayzero.stages.preflight.rule import Case, rule

from .expressions import Condition, NoValue, condition
from .quantities import OF_LAYOUT, Quantities

CHECKED = ("name", "version", "kv_replication", "redundant_experts", "head_padding", "block_padding", "vision",
           "speculative", "declares", "transformers", "supported_since", "removed_in", "param_dtype",
           "config_reads", "config_defaults", "rope_layout", "fuses", "renames", "filters", "expects", "on_unknown",
           "schemes", "backends", "fp8_conversion", "limits", "branches", "modules", "quant_from", "scale_rounding",
           "fuse_suffixes", "unified_pages", "attention_groups", "context_parallel")
"""Facts of [engine] that some rule, the memory model or the search reads."""


@rule("engine-facts-unread", "info")
def engine_facts_unread(case: Case) -> Iterator[Finding]:
    """A fact that the target states about the engine is not checked by any rule.

    ## What
    [engine] states, for instance, which schemes it can run, but nothing here compares that with the release.

    ## Why
    Without this, a stated fact that no rule reads looks like one that was checked and found in order.

    ## Example
    schemes = ["bf16", "w8a8"] for a release in fp8: preflight cannot say that it will not run.

    ## How to fix
    Compare the named facts with the release by hand.
    """
    stated, sources = msgspec.structs.asdict(case.target.engine.facts), case.target.engine.sources
    unread = [name for name, value in stated.items()
              if value is not None and name not in CHECKED and sources.get(name, "target file") == "target file"]
    if unread:
        yield Finding(rule="engine-facts-unread", severity="info", subject="engine",
                      message=f"stated for the engine, but not checked: {', '.join(unread)}",
                      hint="compare them with the release by hand", facts={"unread": unread})


@rule("engine-limit")
def engine_limit(case: Case) -> Iterator[Finding]:
    """A number of the model, the workload or a layout is above a compiled limit of the engine.

    ## What
    Each of the engine's `limits` (`experts = 512`, `top_k = 16`, `head_dim = 256`, or any integer key of the config)
    against that number. Those that a layout decides (`tp`, `local_heads`, `local_experts`) are looked at for each
    layout of the target. A limit on something that has no number here is an info.

    ## Why
    Kernels are compiled for array sizes. One size more ends in an assertion at the first batch, or reads beyond an
    array.

    ## Example
    A router kernel built for at most 512 experts and a model with 896.

    ## How to fix
    Take a version or a backend of the engine without that limit.
    """
    limits = case.target.engine.facts.limits
    if not limits:
        return
    numbers = Quantities(case)
    for name, limit in limits.items():
        if name not in numbers.known:
            yield Finding(
                rule="engine-limit", severity="info", subject=name, facts={"limit": limit},
                message=f"the engine's limit on {name} is not checked: no number here has that name",
                hint=f"{did_you_mean(name, numbers.known)}name a number such as experts, top_k, heads, head_dim, or an "
                     "integer key of the config")
            continue
        for layout in case.target.layouts if name in OF_LAYOUT else (None,):
            value = numbers.of(layout).get(name)
            if value is not None and value > limit:
                yield Finding(
                    rule="engine-limit", severity="error", subject=numbers.subject(name),
                    message=f"{name} is {value}, the engine's limit is {limit}" + _under(layout),
                    hint="take a version or a backend of the engine without that limit",
                    facts={"value": value, "limit": limit, **({"layout": layout.text} if layout else {})})


def _under(layout: Layout | None) -> str:
    return f" ({layout.text})" if layout else ""


@rule("engine-branch")
def engine_branch(case: Case) -> Iterator[Finding]:
    """A kernel branch that the workload reaches needs what the model has not.

    ## What
    For each of the engine's `branches`: can `when` hold in this workload, and does `needs` hold then? `tokens` is
    every number of tokens of one step, from 1 to max_batched_tokens.

    ## Why
    Short tests never reach the branch for long batches. It fails in production.

    ## Example
    A top-k kernel that above 54,272 tokens needs a power of two as number of experts, on a model with 384
    (ROCm/aiter#2359).

    ## How to fix
    Lower max_batched_tokens below the branch, or choose another kernel.
    """
    branches = case.target.engine.facts.branches
    if not branches:
        return
    numbers = Quantities(case)
    for branch in branches:
        when, needs = condition(branch.when, numbers.known), condition(branch.needs, numbers.known)
        names = when.names | needs.names
        layouts: tuple[Layout | None, ...] = case.target.layouts if names.intersection(OF_LAYOUT) else (None,)
        for layout in layouts:
            values = numbers.of(layout)
            failing = _failing(when, needs, values)
            if failing is not None:
                used = {name: failing[name] for name in sorted(names)}
                told = ", ".join(f"{name} = {value}" for name, value in used.items())
                yield Finding(
                    rule="engine-branch", severity="error", subject=branch.op,
                    message=f"{branch.op} needs {branch.needs} when {branch.when}; here {told}" + _under(layout),
                    hint="choose another kernel, or keep the workload out of that branch",
                    facts={"when": branch.when, "needs": branch.needs, **used,
                           **({"layout": layout.text} if layout else {})})


def _failing(when: Condition, needs: Condition, values: dict[str, int]) -> dict[str, int] | None:
    """Values at which the branch is taken and its need is not met; None: there are none, or a number has no value."""
    try:
        for tokens in _steps(when, needs, values["tokens"]):
            tried = {**values, "tokens": tokens}
            if when.test(tried) and not needs.test(tried):
                return tried
    except NoValue:
        return None
    return None


def _steps(when: Condition, needs: Condition, most: int) -> list[int]:
    """Numbers of tokens at which an answer can change: the most first, then those around the numbers that are named."""
    if "tokens" not in when.names | needs.names:
        return [most]
    named = when.numbers | needs.numbers
    around = {number + step for number in named for step in (-1, 0, 1)}
    around |= {most // number * number for number in named if 0 < number <= most}
    return [most, *sorted(step for step in around | {1, most - 1} if 0 < step < most)]
