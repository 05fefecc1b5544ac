"""What a plan is written out for: one module for each engine, found by the name that target files use."""

from __future__ import annotations

from dayzero.registry import Registry

from .base import EmitTarget, Launch

__all__ = ["EMIT_TARGETS", "EmitTarget", "Launch"]

EMIT_TARGETS: Registry[EmitTarget] = Registry("emit target")
EMIT_TARGETS.add("vllm", "dayzero.targets.vllm:VLLM")
