"""Causes of time and the figures that they depend on; names of architectures, taken apart."""

from __future__ import annotations

import re

FACTORS: dict[str, dict[str, int]] = {
    "products": {"linear_rate": -1, "linear_bytes": -1},
    "experts": {"expert_rate": -1, "expert_bytes": -1, "expert_call": 1},
    "attention": dict.fromkeys(("cache_bytes", "cache_rate_decode", "cache_rate_prefill", "latent_bytes",
                                "latent_rate_decode", "latent_rate_prefill", "state_bytes", "state_rate"), -1),
    "links": {"link": -1, "reduce_call": 1, "reduce_step": 1, "exchange_call": 1, "far_call": 1},
    "calls": {"operator_call": 1},
    "steps": {"step": 1, "sequence": 1},
    "prefill": {"prefill_factor": 1},
    "prefill of others": {"share": 1, "mixed": 1},
    "waiting": {"queue": 1, "loaded": 1, "burst": 1, "apart_queue": 1, "unstated_queue": 1},
    "requests": {"request": 1, "apart_request": 1},
}
"""Causes of time that a calibration has factors for -> the figures that say how long they take, with the power of the
factor: -1 for shares of a rate."""


def split_arch(arch: str) -> tuple[str, int]:
    """(letters, number) of a compiler's name of an architecture; number 0: it is not a rising one."""
    match = re.fullmatch(r"([a-z]+_)(\d+)[a-z]?", arch)
    return (match[1], int(match[2])) if match else (arch, 0)
