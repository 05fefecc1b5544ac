"""Rules about shipped code: each with code that breaks, and the same code repaired."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.fuzz_outcome import WATCH
from tests.support.shipped_code import AUTO_MAP, case, engine

from dayzero.schema import Target
from dayzero.stages.preflight.code import installed
from dayzero.stages.preflight.code import rules as code

TAKE = "from transformers.utils.import_utils import is_torch_fx_available"
GONE = "transformers.utils.import_utils.is_torch_fx_available"
CLASS = "class TinyForCausalLM:\n    pass\n"
STATED = engine(transformers="5.16.1", removed_in={GONE: "5.0.0"})


def told(rule, *args: object, **config: object) -> set[tuple[str, str]]:
    return {(finding.severity, finding.subject) for finding in rule(case(*args, **config))}


def imports(folder: Path, text: str, on: Target = STATED, **files: str) -> set[tuple[str, str]]:
    """Findings about a modeling file of that text beside a complete configuration."""
    own = {"modeling_tiny.py": f"{text}\n{CLASS}", "configuration_tiny.py": "class TinyConfig:\n    pass\n"}
    return told(code.code_import, folder, own | files, on, auto_map=AUTO_MAP)


# huggingface/transformers#44615: the name went away in 5.0.0
@pytest.mark.parametrize("text", [
    f"{TAKE}\n",
    "import transformers.utils.import_utils as u\nx = u.is_torch_fx_available()\n",
    "from transformers.utils import import_utils\nif True:\n    pass\nx = import_utils.is_torch_fx_available()\n",
    f"def f():\n    {TAKE} as g\n    return g()\n",
    f"try:\n    {TAKE}\nexcept ImportError:\n    raise ImportError('no')\n",
])
def test_a_removed_name(tmp_path: Path, text: str) -> None:
    assert imports(tmp_path, text) == {("error", GONE)}


def test_a_removed_name_that_a_package_above_passes_on(tmp_path: Path) -> None:
    text = "from transformers.utils import is_torch_fx_available\n"
    assert imports(tmp_path, text) == {("error", "transformers.utils.is_torch_fx_available")}


def test_everything_inside_of_a_removed_module(tmp_path: Path) -> None:
    on = engine(transformers="5.0.0", removed_in={"transformers.onnx": "5.0.0"})
    assert imports(tmp_path, "from transformers.onnx import OnnxConfig\n", on) == {
        ("error", "transformers.onnx.OnnxConfig")}


@pytest.mark.parametrize("text", [
    "from transformers.utils.import_utils import is_torch_available\n",
    f"try:\n    {TAKE}\nexcept ImportError:\n    pass\n",
    f"import importlib\nif importlib.util.find_spec('x'):\n    {TAKE}\n",
    f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {TAKE}\n",
    f"from contextlib import suppress\nwith suppress(ImportError):\n    {TAKE}\n",
    f"# {TAKE}\n",
])
def test_a_name_that_is_there_or_guarded(tmp_path: Path, text: str) -> None:
    assert imports(tmp_path, text) == set()


@pytest.mark.parametrize(("version", "found"), [("4.57.1", False), ("5.0.0rc1", False), ("5.0.0", True),
                                                ("10.0", True), ("a-branch", False), (None, False)])
def test_versions_are_compared_as_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None,
                                           found: bool) -> None:
    monkeypatch.setattr(installed.Installed, "version", lambda self, name: None)
    monkeypatch.setattr(installed.Installed, "absent", lambda self, wanted: set())
    on = engine(transformers=version, removed_in={GONE: "5.0.0"})
    assert (("error", GONE) in imports(tmp_path, TAKE, on)) == found


def test_the_installed_packages_count_where_the_target_states_nothing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "stand_in"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .inner import *\ndef __getattr__(name):\n"
                                         "    if name == 'made':\n        return 1\n    raise AttributeError(name)\n")
    (package / "inner.py").write_text("kept = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    text = "from stand_in import kept, made, gone\nfrom stand_in.inner import kept\nfrom stand_in.other import x\n"
    found = imports(tmp_path / "release", text, engine())
    assert found == {("error", "stand_in.gone"), ("error", "stand_in.other.x")}
    assert imports(tmp_path / "again", text, engine("some-engine")) == {
        ("warning", "stand_in.gone"), ("warning", "stand_in.other.x")}, "it may have model code of its own"
    assert imports(tmp_path / "stated", text, STATED) == set()


def test_an_alternative_is_needed_where_the_first_choice_is_absent(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "stand_in.py").write_text("kept = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    text = "try:\n    from stand_in import {}\nexcept ImportError:\n    from stand_in import {}\n"
    assert imports(tmp_path / "a", text.format("kept", "gone"), engine()) == set()
    assert imports(tmp_path / "b", text.format("gone", "kept"), engine()) == set()


@pytest.mark.parametrize(("packages", "on", "severity"), [
    (("torch", "transformers"), engine(), "warning"), ((), engine(), "info"),
    (("torch", "transformers"), STATED, "info")])
def test_a_package_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: tuple[str, ...],
                                         on: Target, severity: str) -> None:
    monkeypatch.setattr(installed.Installed, "has_package", lambda self, name: name in packages)
    monkeypatch.setattr(installed.Installed, "absent", lambda self, wanted: set())
    text = "import torch\nimport kernels_of_tomorrow.ops as k\nfrom kernels_of_tomorrow import a\n"
    assert imports(tmp_path, text, on) == {(severity, "kernels_of_tomorrow")}


def test_what_the_release_should_ship_itself(tmp_path: Path) -> None:
    text = ("from .media_utils import load\nfrom .configuration_tiny import TinyConfig, Other\n"
            "from . import configuration_tiny\n")
    assert imports(tmp_path, text) == {("error", "media_utils"), ("error", "configuration_tiny.Other")}


def test_files_that_no_library_loads_are_not_looked_at(tmp_path: Path) -> None:
    assert imports(tmp_path, "", **{"inference/generate.py": f"from .absent import x\n{TAKE}\n"}) == set()


def test_files_named_as_usual_count_without_auto_map(tmp_path: Path) -> None:
    files = {"modeling_tiny.py": TAKE}
    assert told(code.code_import, tmp_path, files, STATED) == {("error", GONE)}


def test_targets_of_auto_map(tmp_path: Path) -> None:
    files = {"modeling_tiny.py": "class Other:\n    pass\n",
             "tokenizer_config.json": '{"auto_map": {"AutoTokenizer": ["tokenization_tiny.TinyTokenizer", null]}}'}
    found = told(code.code_import, tmp_path, files, STATED, auto_map=AUTO_MAP | {
        "AutoModel": "other/repo--modeling.Model", "AutoTokenizer": "other/tokenizer"})
    assert found == {("error", "modeling_tiny.TinyForCausalLM"), ("error", "configuration_tiny.TinyConfig"),
                     ("error", "tokenization_tiny.TinyTokenizer")}


def test_no_code_at_all_is_no_finding(tmp_path: Path) -> None:
    assert told(code.code_import, tmp_path, {}, STATED, auto_map=AUTO_MAP) == set()


def test_a_class_that_the_named_file_imports_is_there(tmp_path: Path) -> None:
    files = {"modeling_tiny.py": "from .base import TinyForCausalLM\n", "base.py": CLASS,
             "configuration_tiny.py": "TinyConfig = object\n"}
    assert told(code.code_import, tmp_path, files, STATED, auto_map=AUTO_MAP) == set()


def test_what_is_not_python(tmp_path: Path) -> None:
    old = case(tmp_path, {"modeling_tiny.py": "print 'old'\n"})
    with WATCH.watching((tmp_path,)) as seen:  # Python shows the line of an error: from which file?
        assert [(found.severity, found.subject) for found in code.code_import(old)] == [("error", "modeling_tiny")]
    assert not seen


@pytest.mark.parametrize(("wrote", "reads", "severity"), [
    ("5.6.2", "4.57.0", "warning"), ("4.57.0.dev0", "4.51.0", "info"), ("4.57.0.dev0", "4.57.0", None),
    ("4.44.2", "5.3.0", None), ("5.3.0", None, None), ("unknown", "5.0", None),
    ("9" * 5000, "5.0", None)])
def test_a_config_that_a_newer_library_wrote(tmp_path: Path, wrote: str, reads: str | None,
                                             severity: str | None) -> None:
    found = told(code.transformers_older, tmp_path, {}, engine(transformers=reads), transformers_version=wrote)
    assert found == ({(severity, "transformers_version")} if severity else set())


def test_what_deserves_a_look(tmp_path: Path) -> None:
    files = {"modeling_tiny.py": "import subprocess\nsubprocess.run(['ls'])\nmodel.eval()\n", "quiet.py": "import re\n"}
    one, = code.code_untrusted(case(tmp_path, files))
    assert (one.severity, one.subject, one.facts["lines"]) == ("info", "modeling_tiny.py:1", [1, 2])


@pytest.mark.parametrize(("version", "gone"), [
    ("4.57.0", []), ("5.1.0", ["is_torch_fx_available"]),
    ("5.2.0", ["OutputRecorder", "check_model_inputs", "is_torch_fx_available"]),
    ("5.16.1", ["OutputRecorder", "is_torch_fx_available"])])
def test_removals_that_are_known_without_a_fact_of_the_target(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, gone: list[str]) -> None:
    """moonshotai/Kimi-K3: modeling_kimi_linear.py imports the last two."""
    monkeypatch.setattr(installed.Installed, "version", lambda self, name: "0")
    text = f"{TAKE}\nfrom transformers.utils.generic import OutputRecorder, check_model_inputs\n"
    found = imports(tmp_path, text, engine(transformers=version))
    assert sorted(subject.rpartition(".")[2] for _, subject in found) == gone
    other = engine(transformers=version, removed_in={"transformers.utils.generic": "9.0"})
    assert sorted(subject.rpartition(".")[2] for _, subject in imports(tmp_path / "2", text, other)) == [
        name for name in gone if name == "is_torch_fx_available"]
