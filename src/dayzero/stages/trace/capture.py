"""Runs a model on the meta device and writes down each operator call: what, where, shapes, cost.

Tensors have shapes and no values here. When the code asks for a value it gets an answer from the data table, and the
place is written down, because the answer decides which path is traced. Needs torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from dayzero.data.operators import Answer, Operators
from dayzero.schema.graph import ControlFlow, OpCall, PhaseName

from . import counts
from .kinds import Classifier, Place, plain

DTYPES = {
    torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.float64: "f64", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip
"""Short names of dtypes; another one keeps torch's name."""
LEARN_LIMIT = 256 * 2**20
"""Most bytes of arguments for which an operator without a shape rule is run on zeros to learn the shapes."""
OURS = ("torch", __name__.partition(".")[0])
"""Packages whose frames say nothing about the model."""
Shapes = tuple[tuple[int, ...], ...]


class Row(NamedTuple):
    """What equal calls have in common."""

    phase: PhaseName
    op: str
    place: str
    kind: str
    inputs: Shapes
    outputs: Shapes
    dtype: str


class Site(NamedTuple):
    """A place that asks for a value, and what it was told."""

    file: str
    line: int
    kind: str
    assumed: str


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers, executes and records every operator call of a model, while `phase` is set."""

    def __init__(self, model: torch.nn.Module, table: Operators, experts: int = 0, top_k: int = 0) -> None:
        """`experts` of which each token visits `top_k`: hits are spread evenly over them; 0: the model has none."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase: PhaseName | None = None
        self.tokens = 0
        self.current = ""
        self._table = table
        self._experts = experts
        self._top_k = top_k
        self._types = {path: type(module).__name__ for path, module in model.named_modules()}
        self._classifier = Classifier(table, self._types)
        self._stack = [""]
        self._rows: dict[Row, list[int]] = {}
        self._sites: dict[Site, int] = {}
        self._missing: dict[str, None] = {}
        self._last: tuple[Any, str] = (None, "")
        self._hook(model)

    def _hook(self, model: torch.nn.Module) -> None:
        """Follow the module that is running. The hooks return None: anything else would replace the output."""
        for path, module in model.named_modules():
            module.register_forward_pre_hook(lambda _module, _inputs, path=path: self._stack.append(path))
            module.register_forward_hook(lambda _module, _inputs, _output: self._leave(), always_call=True)

    def _leave(self) -> None:
        self._stack.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        op = func.name().partition(".")[0].replace("::", ".") if hasattr(func, "_schema") else f"{func}"
        if op in self._table.ignored:
            return func(*args, **kwargs)
        answer = self._table.answer(op)
        if answer is not None:
            return self._answer(answer, args[0])
        if op not in self._table.whole and hasattr(func, "decompose"):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self.current = f"{op} in {self._stack[-1] or 'the model itself'}"
        out = self._execute(func, op, args, kwargs)
        if self.phase is not None:
            self._record(func, op, args, kwargs, out)
        self._last = (out, op)
        return out

    def _execute(self, func: Any, op: str, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except NotImplementedError:
            if func._schema.is_mutable or sum(map(counts.touched, _tensors((args, kwargs)))) > LEARN_LIMIT:
                raise
        file, line = _site()
        self._missing[missing(f"{op} (no shape rule: its result has the shape that zeros gave)", file, line)] = None
        zeros = tree_map_only(torch.Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype, device="cpu"), (args, kwargs))
        return tree_map_only(torch.Tensor, lambda t: t.to("meta"), func(*zeros[0], **zeros[1]))

    def _answer(self, answer: Answer, asked: torch.Tensor) -> Any:
        file, line = _site()
        if answer.answer == "rows":
            hits = self._hits(asked)
            result: Any = torch.empty((hits, asked.dim()), dtype=torch.int64, device="meta")
            assumed = f"{hits} of {asked.numel()}"
        else:
            tensor, made_by = self._last
            value = answer.after.get(made_by, answer.value) if tensor is asked else answer.value
            truth = asked.dtype is torch.bool or answer.op == "aten.equal"
            result = bool(value) if truth else float(value) if asked.dtype.is_floating_point else value
            assumed = str(result)
        site = Site(file, line, answer.kind, assumed)
        self._sites[site] = self._sites.get(site, 0) + 1
        return result

    def _hits(self, asked: torch.Tensor) -> int:
        """Elements that are not zero: all of them without experts. With experts, along one axis as many as experts can
        be hit by the tokens of the step; with more axes (who goes to one of the experts) an even share."""
        if not self._experts:
            return asked.numel()
        if asked.dim() > 1:
            return -(-asked.numel() // self._experts)
        return min(asked.numel(), self._experts, self.tokens * self._top_k)

    def _record(self, func: Any, op: str, args: Any, kwargs: Any, out: Any) -> None:
        assert self.phase is not None
        inputs, outputs = list(_tensors((args, kwargs))), list(_tensors(out))
        place = Place(self._stack[-1], _functions())
        view = _is_view(func)
        kind = self._classifier.kind(op, place, view=view)
        flops, size = 0, 0
        if kind != "view":
            counted = counts.flops(func, op, args, kwargs, out)
            if counted is None and self._table.kind(plain(op)) in counts.NEEDS_FORMULA:
                self._missing[missing(f"{op} (no formula for its operations: counted as 0)", *_site())] = None
            flops, size = counted or 0, counts.moved(op, self._table, inputs, outputs)
        first = inputs[0].dtype if inputs else outputs[0].dtype if outputs else None
        row = Row(self.phase, op, place.path, kind, _shapes(inputs), _shapes(outputs),
                  DTYPES.get(first, str(first).removeprefix("torch.")) if first else "")
        totals = self._rows.setdefault(row, [0, 0, 0])
        totals[0] += 1
        totals[1] += flops
        totals[2] += size

    def describe(self, error: BaseException) -> str:
        """Operator, module and reason of an error that ended a run."""
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return f"{self.current}: {reason}"

    def give_up(self, phase: PhaseName, error: BaseException) -> None:
        """Forget what a phase has recorded, and record that it is missing."""
        self._rows = {row: totals for row, totals in self._rows.items() if row.phase != phase}
        self._missing[missing(f"{phase} ({self.describe(error)})", *_raised_at(error))] = None

    def operators(self) -> tuple[OpCall, ...]:
        """All calls, in the order in which they were first made."""
        return tuple(
            OpCall(op=row.op, module=row.place, module_type=self._types[row.place], kind=row.kind, count=count,
                   inputs=row.inputs, outputs=row.outputs, dtype=row.dtype, flops=flops, bytes=size, phase=row.phase)
            for row, (count, flops, size) in self._rows.items())

    def control_flow(self) -> tuple[ControlFlow, ...]:
        """All places that asked for a value, by file and line."""
        return tuple(ControlFlow(**site._asdict(), times=times, executed=True)
                     for site, times in sorted(self._sites.items()))

    def missing(self) -> tuple[str, ...]:
        """What could not be traced."""
        return tuple(self._missing)


def missing(call: str, file: str, line: int) -> str:
    """One entry of `OpGraph.missing`; `views.split_missing` takes it apart."""
    return f"{call} at {file}:{line}"


def prefill(model: Callable[..., Any], batch: int, tokens: int) -> Any:
    """Run `tokens` new tokens of each of `batch` sequences; the output holds the cache."""
    return model(input_ids=_token_ids(batch, tokens), use_cache=True)


def decode(model: Callable[..., Any], batch: int, cache: Any) -> Any:
    """Run one new token of each sequence against a cache."""
    return model(input_ids=_token_ids(batch, 1), past_key_values=cache, use_cache=True)


def _token_ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.empty((batch, tokens), dtype=torch.int64, device="meta")


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _shapes(tensors: Iterable[torch.Tensor]) -> Shapes:
    return tuple(tuple(tensor.shape) for tensor in tensors)


def _is_view(func: Any) -> bool:
    """Whether the schema says that a result shares an argument's memory without writing to it."""
    returns = func._schema.returns if hasattr(func, "_schema") else ()
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _frames() -> Iterator[FrameType]:
    """Frames outside torch and this package, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in OURS:
            yield frame
        elif frame.f_code.co_name == "_call_impl":
            return
        frame = frame.f_back


def _functions() -> tuple[str, ...]:
    """Names of the functions between the innermost module's forward and the operator."""
    return tuple(frame.f_code.co_name for frame in _frames() if frame.f_code.co_name not in ("forward", "__call__"))


def _raised_at(error: BaseException) -> tuple[str, int]:
    """File and line, as in `_site`, of the innermost such frame that an error went through."""
    place, trace = ("torch", 0), error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "?")
        if name.partition(".")[0] not in OURS:
            place = (f"{name.replace('.', '/')}.py", trace.tb_lineno)
        trace = trace.tb_next
    return place


def _site() -> tuple[str, int]:
    """File, below its package, and line of the innermost frame outside torch and this package."""
    for frame in _frames():
        name = frame.f_globals.get("__name__", "?")
        return f"{name.replace('.', '/')}.py", frame.f_lineno
    return "torch", 0
