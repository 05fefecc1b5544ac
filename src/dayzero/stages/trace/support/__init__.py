"""Which operators of a graph a backend implements, for which dtype, and how that is known.

Sources, in this order: the backend's own list; the registrations of the installed torch for the backend's dispatch key;
where that torch was built without the backend, the declarations that come with it. What is registered says nothing
about dtypes, so on a device that is here each pair is also tried, on tiny tensors in a child process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dayzero.backends import Backend, backends
from dayzero.errors import NotPossible, UsageError
from dayzero.progress import SILENT, Progress
from dayzero.schema import OpCall, OpGraph

from .nouns import STATUSES, Known, Support
from .trial import Case, try_all

__all__ = ["STATUSES", "Support", "in_model_file", "operator_support"]

OURS = "dayzero"
"""Namespace of the operators that stand in for kernel libraries."""
_MODELS = ("transformers", "transformers_modules")
"""Packages of model files: the library's, and those in which it puts what releases bring along."""


def operator_support(graph: OpGraph, names: Sequence[str], *, trial: bool = True, progress: Progress = SILENT
                     ) -> tuple[Support, ...]:
    """A row for each pair (operator, dtype) of the graph and each of the backends, the worst first.

    Raises UsageError for a backend that neither dayzero nor torch knows, NotPossible without torch.
    """
    cases = _cases(graph)
    rows = [row for name in dict.fromkeys(names) for row in _on_backend(name, graph, cases, trial, progress)]
    order = list(STATUSES)
    return tuple(sorted(rows, key=lambda row: (order.index(row.status), row.op, row.dtype, names.index(row.backend))))


def in_model_file(call: str) -> bool:
    """Whether a call that was shown as one operator is a function of a model file: torch then computes it anywhere."""
    return call.partition(".")[0] in _MODELS


def _cases(graph: OpGraph) -> dict[Case, int]:
    """Each pair with the shapes of its first call, and its number of calls."""
    first: dict[tuple[str, str], OpCall] = {}
    counts: dict[tuple[str, str], int] = {}
    for call in graph.operators:
        pair = (call.op, call.dtype)
        first.setdefault(pair, call)
        counts[pair] = counts.get(pair, 0) + call.count
    return {Case(op=call.op, dtype=call.dtype, kind=call.kind, inputs=call.inputs, outputs=call.outputs): counts[pair]
            for pair, call in first.items()}


def _on_backend(name: str, graph: OpGraph, cases: dict[Case, int], trial: bool, progress: Progress) -> list[Support]:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise NotPossible("the registrations of operators are torch's, which is not installed",
                          "pip install 'dayzero[torch]'") from None
    backend = backends().get(name) if name in backends() else None
    looked_up = _lookup(name, backend, graph)
    known = {case: looked_up(case) for case in cases}
    results: dict[Case, str] = {}
    if trial and _is_here(name, backend):
        progress.update(f"trying operators on {name}", 0)
        results = try_all([case for case in cases if known[case].status in ("native", "composite", "fallback")], name)
    return [_row(case, count, name, known[case], results.get(case, "")) for case, count in cases.items()]


def _row(case: Case, count: int, name: str, known: Known, result: str) -> Support:
    """The row of a pair; a trial that failed for the dtype outweighs a registration."""
    failed = result not in ("", "works")
    return Support(op=case.op, dtype=case.dtype, backend=name, count=count,
                   status="none" if failed else known.status,
                   how=f"registered, and fails for {case.dtype}: {result}" if failed else known.how,
                   tried="fails" if failed else "works" if result else "")


def _is_here(name: str, backend: Backend | None) -> bool:
    """Whether operators can be run there now."""
    from dayzero.backends.dispatch import has_device

    return backend.is_available() if backend is not None else has_device(name)


def _lookup(name: str, backend: Backend | None, graph: OpGraph) -> Callable[[Case], Known]:
    """What is known of an operator on one backend. Raises UsageError where nobody knows anything of it."""
    real: dict[str, list[str]] = {}
    for each in graph.stand_ins:
        real.setdefault(each.op.removeprefix(f"{OURS}."), []).append(each.call)
    asked = backend.supported if backend is not None else _registered(name)

    def known(case: Case) -> Known:
        namespace, _, op = case.op.partition(".")
        if namespace == OURS:
            return _stood_in(real.get(op, ()))
        return asked(case.op, case.dtype, len(case.inputs))

    return known


def _registered(device_type: str) -> Callable[[str, str, int], Known]:
    """Of a device type of torch that no backend is for."""
    from dayzero.backends.dispatch import Dispatcher, dispatch_key

    key = dispatch_key(device_type)
    if key is None:
        raise UsageError(f"no backend is named {device_type!r}",
                         f"known: {', '.join(backends().names())}, and torch's device types, such as mps or xpu")
    dispatcher = Dispatcher(key)
    if not dispatcher.knows:
        raise UsageError(f"nothing says what backend {device_type!r} implements: the installed torch neither has it "
                         "nor lists its operators", "install the package that brings the backend")
    return lambda op, _, tensors: dispatcher.known(op, tensors)


def _stood_in(calls: Sequence[str]) -> Known:
    """Of an operator that took the place of these calls."""
    kernels = [call for call in calls if not in_model_file(call)]
    if calls and not kernels:
        return Known(status="composite", how=f"a function of a model file: {', '.join(calls)}")
    return Known(status="library", how=f"stands in for {', '.join(kernels) or 'a kernel library'}")
