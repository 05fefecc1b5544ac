"""What a verdict looks like on the terminal and as JSON."""

from __future__ import annotations

import io
import json

from rich.console import Console

from dayzero.schema import Check, Divergence, LayerError, Verdict
from dayzero.stages.check.contract import overview, to_contract


def _verdict(*, passed: bool) -> Verdict:
    observed = 0.01 if passed else 0.5
    checks = (
        Check(name="pp=2: layers.3 addition, relative L2", tolerance=0.02, source="s", observed=observed,
              passed=passed),
        Check(name="pp=2: repeated with the same seed", tolerance=0.0, source="s", observed=0.0, passed=True),
    )
    why = {} if passed else {"pp=2: gradients": "no memory"}
    layer = LayerError(layout="pp=2", place="layers.3", relative_l2=observed, max_abs=1.0, cosine=0.9, tolerance=0.02)
    first = Divergence(layout="pp=2", place="layers.3", layer=3, relative_l2=0.5, before=0.01,
                       tensor="model.layers.3.mlp.up_proj.weight")
    return Verdict(checks=checks, layers=(layer,), first_divergence=None if passed else first, reference="m",
                   not_made=why)


def _shown(verdict: Verdict) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(overview(verdict))
    return console.file.getvalue()


def test_as_json() -> None:
    good, bad = (json.loads(json.dumps(to_contract(_verdict(passed=passed)))) for passed in (True, False))
    assert good["passed"] and good["first_divergence"] is None and good["pattern"] is None
    assert bad["first_divergence"] == {"layout": "pp=2", "layer": 3, "module": "model.layers.3.mlp.up_proj", "op": None}
    assert good["not_made"] == {} and bad["not_made"] == {"pp=2: gradients": "no memory"}
    assert bad["checks"][0] == {"name": "pp=2: layers.3 addition, relative L2", "tolerance": 0.02, "source": "s",
                                "observed": 0.5, "passed": False, "detail": ""}


def test_on_the_terminal() -> None:
    good, bad = _shown(_verdict(passed=True)), _shown(_verdict(passed=False))
    assert "2 of 2 checks pass" in good and "nearest to its tolerance: layers.3, relative L2 0.01 of 0.02" in good
    assert "1 of 2 checks pass" in bad and "first divergence: layers.3 with pp=2: relative L2 0.5" in bad
    assert "its weights differ: model.layers.3.mlp.up_proj.weight" in bad
    assert "not made: pp=2: gradients (no memory)" in bad and "not made" not in good
    assert "layers.3 addition" in bad and "layers.3 addition" not in good
