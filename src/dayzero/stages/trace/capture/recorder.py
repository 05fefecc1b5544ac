"""Runs a model on the meta device and writes down each operator call: what, where, shapes, cost.

Tensors have shapes and no values here. When the code asks for a value it gets an answer from the data table, and the
place is written down, because the answer decides which path is traced. Modules that are proven to do what others did
are left out. Needs torch.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from dayzero.data.operators import Answer, Operators
from dayzero.runtime.stand_ins import MissingStandIn, listening

from . import counts
from .captured import Call, Captured, Shapes
from .expansion import shares
from .kinds import Classifier, Place, plain
from .policies import Policies, Routing
from .repeats import Repeats
from .signatures import Signatures
from .sites import Site, functions, raised_at, site
from .step import Step

DTYPES = {
    torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.float64: "f64", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip
"""Short names of dtypes; another one keeps torch's name."""
CACHES = ("past_key_values", "cache", "cache_params", "state")
"""What models call the cache among their arguments and results."""
LEARN_LIMIT = 256 * 2**20
"""Most bytes of arguments for which an operator without a shape rule is run on zeros to learn the shapes."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers, executes and records every operator call of a model."""

    def __init__(self, model: torch.nn.Module, table: Operators, experts: int = 0, top_k: int = 0, *,
                 repeats: bool = True) -> None:
        """`experts` of which each token visits `top_k`: hits are spread evenly over them; 0: the model has none.
        `repeats` False: every module runs, whatever is known of others."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = ""
        self._table = table
        modules = dict(model.named_modules())
        self._paths = {id(module): path for path, module in modules.items()}
        self.types = {path: type(module).__name__ for path, module in modules.items()}
        self._classifier = Classifier(table, self.types)
        self._mask = next(answer for answer in table.answers if answer.op == "mask")
        self._policies = Policies(table, Routing(experts, top_k))
        self.signatures = Signatures()
        self._repeats = Repeats(model, modules, self.signatures) if repeats else None
        self._stack: list[tuple[str, int]] = [("", 0)]
        self._visits: Counter[str] = Counter()
        self._recording = self._silent = False
        self._step = Step("prefill", 1, 1)
        self._calls: list[Call] = []
        self._times: dict[str, int] = {}
        self._sites: Counter[tuple[Site, str]] = Counter()
        self._stood_in: Counter[tuple[str, str, str]] = Counter()
        self._missing: dict[str, None] = {}
        self._last: tuple[Any, str] = (None, "")

    def run(self, step: Step, forward: Callable[[], Any], *, record: bool = True) -> tuple[Any, Captured]:
        """Result of one run of the model, and its calls (none without `record`). Raises what the model's code raises,
        and InconsistentError when something was left out that did differ."""
        self._step = step
        self._policies.begin(step.batch * step.tokens)
        self._stack, self._visits, self._recording = [("", 0)], Counter(), record
        self._calls, self._times, self._last, self._sites = [], {}, (None, ""), Counter()
        self._stood_in = Counter()
        if self._repeats is not None:
            self._repeats.begin()
        with torch.inference_mode(), self._watching(), listening(self._stands_in), self:
            out = forward()
        repeats = self._repeats.repeats() if self._repeats is not None else {}
        self._recording = False
        return out, Captured(*step, tuple(self._calls), repeats, self._times)

    def _stands_in(self, call: str, op: str) -> None:
        self._stood_in[call, op, self._stack[-1][0]] += 1

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Every call of a module comes by here while it lasts."""
        original = torch.nn.Module.__call__

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = self._paths.get(id(module))
            if path is None:
                return original(module, *args, **kwargs)
            return self._module(original, module, path, args, kwargs)

        torch.nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            with self._repeats.watching() if self._repeats is not None else contextlib.nullcontext():
                yield
        finally:
            torch.nn.Module.__call__ = original  # type: ignore[method-assign]

    def _module(self, original: Callable[..., Any], module: torch.nn.Module, path: str, args: Any, kwargs: Any) -> Any:
        ticket = None
        if self._repeats is not None:
            with self._quiet():
                ticket, entry = self._repeats.enter(module, path, args, kwargs)
                if entry is not None:
                    self._last = (None, "")
                    self._times.setdefault(path, len(self._calls))
                    return self._repeats.apply(entry, path, args, kwargs)
        visit = self._visits[path]
        self._visits[path] += 1
        self._times.setdefault(path, len(self._calls))
        self._stack.append((path, visit))
        if ticket is not None:
            self._last = (None, "")
        out, failed = None, True
        try:
            out = original(module, *args, **kwargs)
            failed = False
        finally:
            self._stack.pop()
            if self._repeats is not None:
                with self._quiet():
                    self._repeats.leave(module, path, args, kwargs, ticket, out, failed)
        return out

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """What is done in between is not the model's."""
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._silent:
            return func(*args, **kwargs)
        op = func.name().partition(".")[0].replace("::", ".") if hasattr(func, "_schema") else f"{func}"
        if op in self._table.ignored:
            return func(*args, **kwargs)
        answer = self._table.answer(op)
        if answer is not None and _asks(answer, args, kwargs):
            return self._answer(answer, args)
        if op not in self._table.whole and hasattr(func, "decompose"):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self.current = f"{op} in {self._stack[-1][0] or 'the model itself'}"
        if op in self._table.masked:
            args = self._by_position(args)
        out = self._execute(func, op, args, kwargs)
        if self._recording:
            self._record(func, op, args, kwargs, out)
        self._last = (out, op)
        return out

    def _execute(self, func: Any, op: str, args: Any, kwargs: Any) -> Any:
        if self._step.phase == "towers":
            args, kwargs = _on_one_device(args, kwargs)
        try:
            return _shaped(func, args, kwargs)
        except NotImplementedError:
            if func._schema.is_mutable or sum(map(counts.touched, _tensors((args, kwargs)))) > LEARN_LIMIT:
                raise
        file, line = site()
        self._missing[missing(f"{op} (no shape rule: its result has the shape that zeros gave)", file, line)] = None
        zeros = tree_map_only(torch.Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype, device="cpu"), (args, kwargs))
        return tree_map_only(torch.Tensor, lambda t: t.to("meta"), func(*zeros[0], **zeros[1]))

    def _answer(self, answer: Answer, args: Any) -> Any:
        place = self._stack[-1][0]
        tensor, made_by = self._last
        with self._quiet():
            result, where = self._policies.answer(
                answer, args, place, self._classifier.routed(place), made_by if tensor is args[0] else "")
        self._sites[where, place] += 1
        return result

    def _by_position(self, args: Any) -> Any:
        """Masks among the indices become the positions of the elements that they pick."""
        found = []
        for index in args[1]:
            masks = isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            if masks and index.device.type == "meta":
                rows = self._answer(self._mask, (index,))
                found += [torch.empty(rows.shape[:1], dtype=rows.dtype, device="meta") for _ in range(index.dim())]
            else:
                found.append(index)
        return (args[0], found, *args[2:])

    def _record(self, func: Any, op: str, args: Any, kwargs: Any, out: Any) -> None:
        inputs, outputs = list(_tensors((args, kwargs))), list(_tensors(out))
        (path, visit), names = self._stack[-1], functions()
        kind = self._classifier.kind(op, Place(path, names), view=_is_view(func))
        flops, size = 0, 0
        if kind != "view":
            counted = counts.flops(func, op, args, kwargs, out)
            if counted is None and self._table.kind(plain(op)) in counts.NEEDS_FORMULA:
                self._missing[missing(f"{op} (no formula for its operations: counted as 0)", *site())] = None
            flops, size = counted or 0, counts.moved(op, self._table, inputs, outputs)
        first = inputs[0].dtype if inputs else outputs[0].dtype if outputs else None
        dtype = DTYPES.get(first, str(first).removeprefix("torch.")) if first else ""
        call = Call(op, path, visit, names, kind, _shapes(inputs), _shapes(outputs), dtype, flops, size)
        self._calls += shares(call, self._step)

    def describe(self, error: BaseException) -> str:
        """Operator, module and reason of an error that ended a run."""
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        return f"{self.current}: {reason}"

    def failure(self, step: Step, error: BaseException) -> str:
        """Entry of `OpGraph.missing` for a step that an error ended."""
        if isinstance(error, MissingStandIn):
            return missing(error.call, error.file, error.line)
        return missing(f"{step.phase} ({self.describe(error)})", *raised_at(error))

    def sites(self, captured: Captured) -> dict[Site, int]:
        """Places that asked for a value in the last run, which gave `captured`, and how often."""
        found: Counter[Site] = Counter()
        for (asked, place), times in self._sites.items():
            found[asked] += times * sum(captured.copies(place).values())
        return found

    def stand_ins(self, captured: Captured) -> dict[tuple[str, str], int]:
        """(Function of a kernel library, operator) -> how often it was called in the last run, which gave `captured`,
        and would have been in what was left out."""
        found: Counter[tuple[str, str]] = Counter()
        for (call, op, place), times in self._stood_in.items():
            found[call, op] += times * sum(captured.copies(place).values())
        return found

    def missing(self) -> tuple[str, ...]:
        """What could not be traced."""
        return tuple(self._missing)


def missing(call: str, file: str, line: int) -> str:
    """One entry of `OpGraph.missing`; `views.split_missing` takes it apart."""
    return f"{call} at {file}:{line}"


def prefill(model: Callable[..., Any], batch: int, tokens: int, **inputs: Any) -> Any:
    """Run `tokens` new tokens of each of `batch` sequences; the output holds the cache. `inputs` are more that the
    model is given."""
    return model(input_ids=_token_ids(batch, tokens), use_cache=True, **inputs)


def decode(model: Callable[..., Any], batch: int, cache: Any, **inputs: Any) -> Any:
    """Run one new token of each sequence against a cache; `inputs` likewise. The cache goes where the signature has it:
    many models take whatever else they are given, and drop it. Raises LookupError without a cache."""
    if cache is None:
        raise LookupError("prefill leaves no cache")
    taken = inspect.signature(getattr(model, "forward", model)).parameters
    name = next((name for name in CACHES if name in taken), CACHES[0])
    return model(input_ids=_token_ids(batch, 1), use_cache=True, **{name: cache}, **inputs)


def cache_of(out: Any) -> Any:
    """The cache among the results of a prefill; None: there is none."""
    return next((left for name in CACHES if (left := getattr(out, name, None)) is not None), None)


def whole_mask(batch: int, tokens: int) -> torch.Tensor:
    """A mask of sequences without padding; `tokens`: those in the cache among them."""
    return torch.ones((batch, tokens), dtype=torch.int64, device="meta")


def _token_ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.empty((batch, tokens), dtype=torch.int64, device="meta")


def _asks(answer: Answer, args: Any, kwargs: Any) -> bool:
    """Whether it is asked of a tensor without values. Copies only ask when they leave for the host, repetition when it
    is given nothing but counts."""
    asked = args[0] if args else None
    if not isinstance(asked, torch.Tensor) or asked.device.type != "meta":
        return False
    if answer.answer == "host":
        return torch.device(kwargs.get("device") or "meta").type == "cpu"
    return answer.answer != "repeated" or (len(args) == 1 and kwargs.get("output_size") is None)


def _shaped(func: Any, args: Any, kwargs: Any) -> Any:
    """The result; where a rule for shapes refuses the dtype of all operands, that of bf16 in theirs: some rules know
    the dtypes of one device's kernel only. Whether a device's kernel takes the dtype is what its backend says."""
    try:
        return func(*args, **kwargs)
    except RuntimeError as refused:
        dtypes = {tensor.dtype for tensor in _tensors((args, kwargs)) if tensor.is_floating_point()}
        if isinstance(refused, NotImplementedError) or func._schema.is_mutable or len(dtypes) != 1:
            raise  # operands of several dtypes: that may be what is refused, and right
        own = dtypes.pop()
        halves = tree_map_only(torch.Tensor, lambda t: _cast(t, own, torch.bfloat16), (args, kwargs))
        try:
            out = func(*halves[0], **halves[1])
        except RuntimeError:
            raise refused from None
        return tree_map_only(torch.Tensor, lambda t: _cast(t, torch.bfloat16, own), out)


def _cast(tensor: torch.Tensor, own: torch.dtype, other: torch.dtype) -> torch.Tensor:
    """A tensor without values of the one dtype in the other."""
    if tensor.dtype != own or tensor.device.type != "meta":
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=other, device="meta")


def _on_one_device(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Sizes of an image have values and meet tensors without values: there they are given without them."""
    if {"meta", "cpu"} <= {tensor.device.type for tensor in _tensors((args, kwargs))}:
        def moved(tensor: torch.Tensor) -> torch.Tensor:
            stays = tensor.device.type == "meta" or not tensor.dim()
            return tensor if stays else torch.empty_like(tensor, device="meta")

        return tree_map_only(torch.Tensor, moved, (args, kwargs))  # type: ignore[no-any-return]
    return args, kwargs


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
