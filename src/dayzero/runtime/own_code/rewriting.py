"""Questions of shipped code about the device of a tensor, changed as it is imported: whether it is on an accelerator
becomes whether it is on the meta device, which stands for one here. So it takes the way that it takes where it is
served, to kernels, and not the one of a machine without them. Nothing else of the code changes, lines included."""

from __future__ import annotations

import ast
import importlib.machinery
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any

ACCELERATOR, HERE = "cuda", "meta"


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of the release."""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        """Its code."""
        try:
            tree = _Questions().visit(ast.parse(data, str(path)))
            code: CodeType = compile(tree, str(path), "exec", dont_inherit=True, optimize=_optimize)
        except (MemoryError, RecursionError):  # the parser's way to say it
            raise SyntaxError("it is nested too deep for the parser", (str(path), None, None, None)) from None
        return code


def spec(fullname: str, path: Sequence[str] | None, target: ModuleType | None
         ) -> importlib.machinery.ModuleSpec | None:  # fmt: skip
    """Of a module of the release."""
    found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
    if found is not None and found.origin and isinstance(found.loader, importlib.machinery.SourceFileLoader):
        found.loader = Loader(fullname, found.origin)
    return found


class _Questions(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """`x.is_cuda`"""
        if node.attr == f"is_{ACCELERATOR}" and isinstance(node.ctx, ast.Load):
            node.attr = f"is_{HERE}"
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """`x.device.type == "cuda"` and the like, with `in`, and either side first."""
        sides = [node.left, *node.comparators]
        if any(isinstance(each, ast.Attribute) and each.attr in ("type", "device") for each in sides):
            for each in sides:
                if isinstance(each, ast.Constant) and each.value == ACCELERATOR:
                    each.value = HERE
        return self.generic_visit(node)
