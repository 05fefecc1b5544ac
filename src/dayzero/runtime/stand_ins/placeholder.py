"""What is imported from a kernel library and has no stand-in: it can be imported, subclassed, asked with isinstance and
used as a decorator or annotation; to call it is an error that says what is missing and where."""

from __future__ import annotations

from typing import Any

from .recording import missing


class _Unknown(type):
    """A class for a name of which nothing is known."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        owner = next(base for base in cls.__mro__ if "dotted" in vars(base))
        if cls is not owner and "__init__" in {name for base in cls.__mro__[:-1] for name in vars(base)}:
            return super().__call__(*args, **kwargs)
        raise missing(vars(owner)["dotted"])

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return placeholder(f"{cls.dotted}.{name}")

    def __getitem__(cls, _key: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __iter__(cls) -> Any:
        raise missing(cls.dotted)

    dotted: str


def placeholder(dotted: str) -> Any:
    """A class that stands for a dotted name (`module:attribute`)."""
    name = dotted.rpartition(":")[2].rpartition(".")[2]
    return _Unknown(name, (), {"dotted": dotted, "__module__": dotted.partition(":")[0]})


class Kernel:
    """A function written in a kernel language: it can be decorated, configured and indexed with a grid, not run."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", "kernel")
        self.__doc__ = getattr(function, "__doc__", None)
        code = getattr(function, "__code__", None)
        self.arg_names = list(code.co_varnames[:code.co_argcount]) if code else []
        self._call = f"{getattr(function, '__module__', '?')}:{self.__name__} (a kernel)"

    def __getitem__(self, _grid: Any) -> Kernel:
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise missing(self._call)


def kernel_decorator(*args: Any, **kwargs: Any) -> Any:
    """`@decorator` and `@decorator(options)` of a kernel language: what they decorate becomes a `Kernel`."""
    if len(args) == 1 and not kwargs and callable(args[0]):
        return args[0] if isinstance(args[0], Kernel) else Kernel(args[0])
    return lambda function: function if isinstance(function, Kernel) else Kernel(function)


def kernel_option(*_args: Any, **_kwargs: Any) -> None:
    """A value that only configures a kernel."""
