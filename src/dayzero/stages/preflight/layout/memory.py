"""Rules about memory: do the weights fit, and does everything else fit beside them."""

from __future__ import annotations

from collections.abc import Iterator

from dayzero.placement.cache import Kind, allocated_per_token, allocation_of, kinds, pages_of
from dayzero.schema import Finding, Layout
from dayzero.stages.preflight.facts import kv_bytes_per_token
from dayzero.stages.preflight.rule import Case, rule
from dayzero.units import format_bytes

from .fit import Fit


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


_SAME = 0.01
"""Share of the need by which an allocation differs without anyone noticing."""


@rule("kv-layout", "info")
def kv_layout(case: Case) -> Iterator[Finding]:
    """The engine allocates more for a token of context than the model needs.

    ## What
    Layers that keep every token need cache for it; sliding layers keep a window, linear layers a state of constant
    size. An engine with pages of one size for all layers (`unified_pages`) deals the layers out to groups and gives
    every group a page for each page of tokens; one that does not keep a latent compressed, or a window bounded, stores
    more as well. The finding states both numbers, and how many tokens one page has.

    ## Why
    The tokens that the engine reports are fewer than memory divided by the need, and a page grows until it holds a
    state: short sequences take whole pages of it.

    ## Example
    20 linear and 7 latent layers are four groups of 7: 32 KB are allocated for a token that needs 8 KB, in pages of 960
    tokens; 2.3 GiB held 75,840 tokens (vllm-project/vllm#28228).

    ## How to fix
    Nothing, if the sequences fit: divide memory by the allocated number. Otherwise take a cache dtype of 8 bits, or an
    engine with a pool of its own for states.
    """
    rules = allocation_of(case.target.engine)
    if rules is None:
        return
    need, allocated = kv_bytes_per_token(case.model), allocated_per_token(case.model, rules)
    if allocated <= need * (1 + _SAME):
        return
    found = kinds(case.model, Layout(), rules, range(len(case.model.layers)), "auto")
    pages = pages_of(found, rules)
    layout = f"in {pages.groups} groups of {pages.group_layers} layers, {pages.tokens} tokens to a page" if pages else \
        "because every layer and head keeps every token"
    yield Finding(
        rule="kv-layout", severity="info", subject="kv_cache",
        message=f"{format_bytes(allocated)} are allocated for a token that needs {format_bytes(need)}, {layout}",
        hint="count tokens by the allocated bytes", facts={
            "need": need, "allocated": allocated, "kinds": [_kind(kind) for kind in found],
            **({"page_tokens": pages.tokens, "groups": pages.groups, "page_bytes": pages.page_bytes} if pages else {})})


def _kind(kind: Kind) -> str:
    keeps = f"{kind.entry} bytes a token" if kind.entry else f"{kind.state} bytes a sequence"
    return f"{kind.layers} layers of {keeps}" + (f", at most {kind.window} tokens" if kind.window else "")
