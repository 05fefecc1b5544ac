"""Questions about the device, asked anew: about the meta device, and nothing else."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("torch")
import torch

from dayzero.runtime.own_code.rewriting import Loader


@pytest.mark.parametrize(("asked", "host", "meta"), [
    ("x.device.type == 'cuda'", False, True), ("'cuda' in x.device.type", False, True),
    ("x.is_cuda", False, True), ("x.device.type != 'cuda'", True, False),
    ("x.device.type == 'cpu'", True, False), ("'cuda' == 'cuda'", True, True), ("'cuda'[0] == 'c'", True, True),
])  # fmt: skip
def test_questions(asked, host, meta) -> None:
    code = Loader("m", "m.py").source_to_code(f"\n\nanswer = {asked}".encode(), "m.py")
    for device, expected in (("cpu", host), ("meta", meta)):
        names = {"x": torch.empty(1, device=device)}
        exec(code, names)
        assert names["answer"] is expected


def test_lines_stay() -> None:
    text = "def f():\n    '''text'''\n\n    return 1 if x.is_cuda else y.z\n"
    code = Loader("m", "m.py").source_to_code(text.encode(), "m.py")
    names: dict = {}
    exec(code, names)
    lines = {line for _, _, line in names["f"].__code__.co_lines() if line}
    assert lines == {1, 4} and ast.get_docstring(ast.parse(text).body[0]) == names["f"].__doc__
