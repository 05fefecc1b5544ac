"""The one place where quantities are written as text.

Inside the program bytes are `int`, time is `float` seconds, rates are per second. GiB (2^30) and GB (10^9) are
different words: memory is printed in GiB, bandwidth in GB/s.
"""

from __future__ import annotations


def _scaled(value: float, step: float, names: tuple[str, ...], digits: int) -> str:
    index = 0
    while abs(value) >= step and index < len(names) - 1:
        value /= step
        index += 1
    return f"{value:.{0 if index == 0 and value == int(value) else digits}f} {names[index]}".rstrip()


def format_bytes(count: int) -> str:
    """Memory, in binary units: 1610612736 -> `1.50 GiB`."""
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"), 2)


def format_rate(per_second: float, unit: str = "B/s") -> str:
    """A rate, in decimal units: 4.8e12 -> `4.80 TB/s`."""
    return _scaled(per_second, 1000, tuple(prefix + unit for prefix in ("", "k", "M", "G", "T", "P")), 2)


def format_count(count: float) -> str:
    """A number of parameters or operations: 2779931644160 -> `2.78 T`."""
    return _scaled(count, 1000, ("", "K", "M", "B", "T", "P"), 2)


def format_flops(count: float) -> str:
    """Floating-point operations: 3.2e12 -> `3.20 TFLOP`."""
    return _scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"), 2)


def format_seconds(seconds: float) -> str:
    """Time with three significant figures: 0.0123 -> `12.3 ms`."""
    scale, unit = _time_unit(seconds)
    return f"{seconds * scale:.3g} {unit}"


def format_interval(value: float, low: float, high: float, unit: str) -> str:
    """A predicted figure with its interval, three significant figures each, in the unit that suits the figure itself:
    (279.1, 164.2, 388.9, tokens/s) -> `279 tokens/s (164 to 389)`. `unit` is `s` or a rate."""
    scale, name = _time_unit(value) if unit == "s" else _rate_unit(value, unit)
    figure, least, most = (f"{float(f'{part * scale:.3g}'):g}" for part in (value, low, high))
    return f"{figure} {name} ({least} to {most})"


def _time_unit(seconds: float) -> tuple[float, str]:
    units = ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min"))
    return next(((scale, unit) for limit, scale, unit in units if abs(seconds) < limit), (1 / 3600, "h"))


def _rate_unit(per_second: float, unit: str) -> tuple[float, str]:
    prefixes = ((1e3, 1.0, ""), (1e6, 1e-3, "k"), (1e9, 1e-6, "M"), (1e12, 1e-9, "G"), (1e15, 1e-12, "T"))
    scale, prefix = next(((scale, prefix) for limit, scale, prefix in prefixes if abs(per_second) < limit),
                         (1e-15, "P"))
    return scale, prefix + unit
