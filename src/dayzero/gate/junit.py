"""A gate's result as JUnit XML, which CI systems show test by test."""

from __future__ import annotations

from xml.etree import ElementTree

from dayzero.schema.gate import GateResult
from dayzero.text import printable


def junit(result: GateResult) -> str:
    """One test case for each check. What cannot tell is skipped with its reason: CI then shows it and stays green."""
    count = {kind: sum(each.outcome == kind for each in result.checks)
             for kind in ("fail", "skipped", "inconclusive")}
    suite = ElementTree.Element(
        "testsuite", name=f"dayzero gate: {printable(result.release)}", tests=str(len(result.checks)),
        failures=str(count["fail"]), errors="0", skipped=str(count["skipped"] + count["inconclusive"]),
        time=f"{result.seconds:.3f}", timestamp=result.made)
    properties = ElementTree.SubElement(suite, "properties")
    for change in result.changed:
        ElementTree.SubElement(properties, "property", name=f"changed {change.what}: {printable(change.name)}",
                               value=f"{change.before or 'none'} -> {change.after or 'none'}")
    for check in result.checks:
        case = ElementTree.SubElement(suite, "testcase", classname=f"dayzero.gate.{printable(result.release)}",
                                      name=printable(check.name), time=f"{check.seconds:.3f}")
        if check.outcome == "fail":
            failure = ElementTree.SubElement(case, "failure", message=printable(check.detail), type="fail")
            failure.text = f"{printable(check.detail)}\nfirst wrong place: {printable(check.where) or 'not known'}"
        elif check.outcome != "pass":
            ElementTree.SubElement(case, "skipped", message=f"{check.outcome}: {printable(check.detail)}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
