"""Lines that deserve a look, and lines like them that do not."""

from __future__ import annotations

import ast

import pytest

from dayzero.stages.preflight.code import untrusted as u


@pytest.mark.parametrize(("text", "kind"), [
    ("import requests", u.NETWORK), ("from urllib.request import urlopen", u.NETWORK),
    ("import socket as s\ns.socket()", u.NETWORK), ("from huggingface_hub import hf_hub_download", u.NETWORK),
    ("import os\nos.system('ls')", u.PROGRAMS), ("from os import popen as p\np('ls')", u.PROGRAMS),
    ("import os\nos.execv('/bin/sh', [])", u.PROGRAMS), ("from subprocess import run", u.PROGRAMS),
    ("eval('1')", u.EVALUATES), ("exec(text)", u.EVALUATES), ("compile(text, 'f', 'exec')", u.EVALUATES),
    ("__import__('os')", u.EVALUATES), ("import importlib\nimportlib.import_module(n)", u.EVALUATES),
    ("import ctypes", u.NATIVE), ("from torch.utils.cpp_extension import load", u.NATIVE),
    ("import pickle\npickle.load(f)", u.UNPICKLES), ("import torch\ntorch.load(f)", u.UNPICKLES),
    ("import torch\ntorch.load(f, weights_only=False)", u.UNPICKLES),
    ("import numpy as np\nnp.load(f, allow_pickle=True)", u.UNPICKLES),
    ("open('/etc/x', 'w')", u.WRITES), ("open(p, mode='ab')", u.WRITES), ("p.write_text('x')", u.WRITES),
    ("import shutil\nshutil.rmtree(p)", u.WRITES), ("import os\nos.remove(p)", u.WRITES),
    ("import os\nos.environ['HF_TOKEN']", u.SECRETS), ("import os\nos.getenv('MY_API_KEY')", u.SECRETS),
    (f"x = '{'QUJD' * 100}'", u.ENCODED),
])
def test_seen(text: str, kind: str) -> None:
    assert {found[0] for found in u.suspicions(ast.parse(text))} == {kind}


@pytest.mark.parametrize("text", [
    "model.eval()", "import re\nre.compile('x')", "import torch\ntorch.compile(model)", "self.compile()",
    "import torch\ntorch.load(f, weights_only=True)", "import numpy as np\nnp.load(f)", "open(p)", "open(p, 'rb')",
    "import os\nos.environ['RANK']", "import os\nos.path.join(a, b)", "from urllib.parse import urlparse",
    f"x = '''{'plain words of a docstring ' * 30}'''", "from .requests import Thing", "executor.exec_count",
    "def open_file(p):\n    return open(p, encoding='utf-8')",
])
def test_not_seen(text: str) -> None:
    assert list(u.suspicions(ast.parse(text))) == []
