"""Places in source text that ask for values, and one list of those and of what ran; no torch."""

from __future__ import annotations

import subprocess
import sys

from dayzero.data.operators import operators
from dayzero.stages.trace.branches import merged, spots_in
from dayzero.stages.trace.capture.sites import Site

SOURCE = '''\
import torch

def helper(x):
    return x.max().item()

def unused(x):
    return x.tolist()

class Layer:
    def __init__(self, x):
        self.n = x.item()
    def forward(self, x, mask):
        if mask is not None and torch.all(
                mask == 1):
            mask = None
        hits = torch.where(mask)
        other = torch.where(mask, x, 0)
        counts = self.count(x)
        for expert in x.nonzero():
            x = x + helper(x)
        everything = x.all()
        return x[counts.cpu().numpy()]
    def count(self, x):
        return torch.unique(x)
    def training_step(self, x):
        return x.item()

class NotBuilt:
    def forward(self, x):
        return x.item()
'''


def test_what_forward_reaches_is_read() -> None:
    spots = [(spot.first, spot.last, spot.kind) for spot in spots_in(SOURCE, "m.py", ["Layer"], operators())]
    assert sorted(spots) == [(4, 4, "item"), (13, 14, "item"), (16, 16, "nonzero"), (19, 19, "nonzero"),
                             (22, 22, "host"), (22, 22, "host"), (24, 24, "unique")]


def test_text_that_is_not_python_has_none() -> None:
    assert list(spots_in("def (", "m.py", ["Layer"], operators())) == []


def test_a_place_is_told_once_and_what_ran_counts() -> None:
    spots = list(spots_in(SOURCE, "m.py", ["Layer"], operators()))
    sites = {Site("m.py", 14, "item", "True"): 2, Site("m.py", 19, "nonzero", "8 of 8"): 1,
             Site("m.py", 19, "nonzero", "2 of 8"): 1, Site("else.py", 4, "item", "0"): 1}  # fmt: skip
    entries = [(entry.file, entry.line, entry.kind, entry.assumed, entry.times, entry.executed)
               for entry in merged(sites, spots)]
    assert entries == [
        ("else.py", 4, "item", "0", 1, True), ("m.py", 4, "item", "", 0, False), ("m.py", 14, "item", "True", 2, True),
        ("m.py", 16, "nonzero", "", 0, False), ("m.py", 19, "nonzero", "8 of 8; 2 of 8", 2, True),
        ("m.py", 22, "host", "", 0, False), ("m.py", 24, "unique", "", 0, False)]


def test_many_answers_are_cut() -> None:
    [entry] = merged({Site("m.py", 1, "item", str(number)): 1 for number in range(6)}, [])
    assert entry.assumed == "0; 1; 2; 3; 2 more" and entry.times == 6


def test_it_does_not_need_torch() -> None:
    code = "import sys, dayzero.stages.trace.branches; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
