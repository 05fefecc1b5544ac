"""Rules about the engine."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dayzero.schema import Finding

from .rule import Case, rule

CHECKED = ("name", "version", "kv_replication", "redundant_experts", "head_padding", "block_padding", "vision",
           "speculative", "declares", "transformers", "supported_since", "removed_in", "param_dtype",
           "config_reads", "config_defaults", "rope_layout", "fuses", "renames", "filters", "expects", "on_unknown")
"""Facts of [engine] that some rule or the memory model reads."""


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
    stated = msgspec.structs.asdict(case.target.engine.facts)
    unread = [name for name, value in stated.items() if value is not None and name not in CHECKED]
    if unread:
        yield Finding(rule="engine-facts-unread", severity="info", subject="engine",
                      message=f"stated for the engine, but not checked: {', '.join(unread)}",
                      hint="compare them with the release by hand", facts={"unread": unread})
