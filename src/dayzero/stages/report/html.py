"""The HTML report: one file, no network, no script but its own.

Strings from releases are untrusted. Templates escape them, JSON inside the page cannot end its element, and the page's
content security policy lets only its own scripts run (by digest) and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from itertools import groupby
from math import log2
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from dayzero import __version__
from dayzero.graphs import phases
from dayzero.schema import Output, Results, RunRecord
from dayzero.units import format_bytes, format_count, format_flops, format_rate, format_seconds

from . import operators
from .card import card_lines, family_rows, tensor_source
from .headline import cluster_text, headline
from .prediction import Prediction, compare, unplanned
from .text import quantity

if TYPE_CHECKING:
    from .charts import Chart

_FIRST_FAMILIES = 10
"""Weight families that are shown at once, the others on demand."""
_SEVERITIES = {"error": "Errors", "warning": "Warnings", "info": "Good to know"}


def report(results: Results) -> str:
    """The report as one HTML document."""
    return page(
        "report.html.j2", ("charts.js", "report.js"),
        results=results, release=results.release, model=results.release.model, cluster=cluster_text(results.target),
        headline=headline(results), card=card_lines(results.release),
        families=family_rows(results.release.model), first_families=_FIRST_FAMILIES,
        tensor_source=tensor_source(results.release),
        findings=_findings(results), operators=_operators(results),
        charts=_charts(results), predictions=compare(results), checks=_checks(results), unplanned=unplanned(results),
        texts=_texts(results.record))


def page(template: str, scripts: tuple[str, ...], **values: Any) -> str:
    """One HTML document of a template with these of our scripts, after the charts' library."""
    from plotly.offline import get_plotlyjs  # slow to import, and only needed here

    texts = [_newlines(get_plotlyjs()), *(_newlines(_template_text(name)) for name in scripts)]
    return _environment().get_template(template).render(
        version=__version__, style=Markup(_template_text("style.css")), policy=_policy(texts),
        scripts=[Markup(text) for text in texts], **values)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(loader=jinja2.PackageLoader(__package__), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"bytes": format_bytes, "seconds": format_seconds, "count": format_count,
                            "rate": format_rate, "flops": format_flops, "quantity": quantity,
                            "script_json": _script_json, "place": _place}
    return environment


def _template_text(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _newlines(text: str) -> str:
    """As a browser sees the text: it reads every kind of line break as a line feed before it takes the digest."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _policy(scripts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
            "base-uri 'none'; form-action 'none'")


def _script_json(value: Any) -> Markup:
    """JSON for a script element: a text is taken as JSON already. No character in it can end the element."""
    text = value if isinstance(value, str) else json.dumps(value, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def _findings(results: Results) -> list[tuple[str, str, list[Any]]]:
    """(severity, heading, findings) for each severity that has any."""
    found = results.findings.findings if results.findings else ()
    groups = [(severity, heading, [finding for finding in found if finding.severity == severity])
              for severity, heading in _SEVERITIES.items()]
    return [group for group in groups if group[2]]


def _checks(results: Results) -> list[Any]:
    """All checks, those that fail first."""
    return sorted(results.verdict.checks, key=lambda check: check.passed) if results.verdict else []


def _operators(results: Results) -> dict[str, Any] | None:
    """Everything about the trace that the page shows; None without one."""
    graph = results.graph
    if graph is None:
        return None
    device, traced = results.target.cluster.device, phases(graph)
    found = {phase.name: operators.hot_spots(graph, phase.name, device) for phase in traced}
    return {"data": {level: operators.table_data(operators.rows(graph, device, level))
                     for level in operators.levels(graph)},
            "phases": traced, "spots": {name: spots for name, spots in found.items() if spots},
            "kinds": operators.kind_rows(graph), "tree": operators.tree_data(graph),
            "sites": sorted(graph.control_flow, key=lambda site: not site.executed)}


def _charts(results: Results) -> dict[str, Chart]:
    """The charts that there is something to draw for, by id."""
    from . import charts, modules, plan_charts

    found: list[Chart | None] = list(plan_charts.plan_charts(results))
    if results.verdict is not None:
        found.append(charts.layers_chart(results.verdict))
    if results.graph is not None:
        found += modules.cost_charts(results.graph)
    return {chart.id: chart for chart in found if chart is not None}


def _texts(record: RunRecord | None) -> list[tuple[str, list[tuple[str, Output]]]]:
    """(prompt, [(layouts, output)]): layouts that generated the same tokens are together."""
    if record is None:
        return []
    texts = []
    for index, prompt in enumerate(record.prompts):
        outputs = [(run.layout.text, run.outputs[index]) for run in record.runs if index < len(run.outputs)]
        outputs.sort(key=lambda pair: pair[1].tokens)
        same = [list(group) for _, group in groupby(outputs, key=lambda pair: pair[1].tokens)]
        texts.append((prompt, [(", ".join(layout for layout, _ in group), group[0][1]) for group in same]))
    return texts


def _place(prediction: Prediction) -> dict[str, float]:
    """Where interval and measured value lie on a scale of ratios from 1/2 to 2 (logarithmic), in per cent."""
    def per_cent(value: float) -> float:
        ratio = value / prediction.predicted if prediction.predicted > 0 else 0.0
        return round(50 * (max(-1.0, min(1.0, log2(ratio))) + 1), 1) if ratio > 0 else 0.0

    return {"low": per_cent(prediction.low), "high": per_cent(prediction.high),
            "measured": per_cent(prediction.measured)}
