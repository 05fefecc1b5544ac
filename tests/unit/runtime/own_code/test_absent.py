"""What shipped code imports and is not there: its own files without a dot, and packages that are not installed."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from dayzero.runtime.own_code import absent
from dayzero.runtime.stand_ins import MissingStandIn

PACKAGE = "transformers_modules_of_a_test"


@pytest.fixture(name="imported")
def imported_fixture(tmp_path: Path) -> Iterator[Callable[..., tuple[Any, absent.Finder]]]:
    """Imports `modeling` from the given files."""
    before, modules = list(sys.meta_path), set(sys.modules)

    def imported(**files: str) -> tuple[Any, absent.Finder]:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        package = sys.modules[PACKAGE] = types.ModuleType(PACKAGE)
        package.__path__ = [str(tmp_path)]
        finder = absent.install(PACKAGE, tmp_path)
        return importlib.import_module(f"{PACKAGE}.modeling"), finder

    yield imported
    sys.meta_path[:] = before
    for name in set(sys.modules) - modules:
        if sys.modules[name].__spec__ is None or name.startswith((PACKAGE, "sibling", "no_such", "modeling")):
            del sys.modules[name]


def test_a_file_of_the_release_is_the_same_module_without_its_dot(imported) -> None:
    module, finder = imported(sibling="class C: pass",
                              modeling="from sibling import C\nfrom .sibling import C as D\nimport sibling")
    assert module.C is module.D and module.sibling.C.__module__ == f"{PACKAGE}.sibling" and not finder.absent
    assert module.sibling.__spec__.name == f"{PACKAGE}.sibling"


def test_a_package_that_is_not_installed_can_be_imported_and_does_nothing(imported) -> None:
    module, finder = imported(modeling="""
import no_such_package.part as part
from no_such_package import layers, register
from no_such_other import Image
size = layers.make((1, 2), mode=part.MODE)
class Tower(layers.Base): pass
@register("x")
def kept(image: Image.Image | None = None) -> int: return 3
def run(x):
    return size(x)
def count():
    return [each for each in size]
""")
    assert finder.absent == ("no_such_package", "no_such_other")
    assert module.kept() == 3 and module.Tower().__class__.__name__ == "Tower"
    import torch

    with pytest.raises(MissingStandIn, match=r"no_such_package.layers.make\(\).*not installed") as caught:
        module.run(torch.zeros(1))
    assert caught.value.line == 10 and caught.value.file.endswith("modeling.py")
    with pytest.raises(MissingStandIn):
        module.count()


@pytest.mark.parametrize("code", [
    "try:\n    import no_such_package\nexcept ImportError:\n    no_such_package = None",
    "try:\n    from no_such_package import x\nexcept:\n    no_such_package = None",
    "try:\n    import no_such_package\nexcept (ImportError, ValueError):\n    no_such_package = None",
])  # fmt: skip
def test_what_the_code_guards_fails_as_elsewhere(imported, code) -> None:
    module, finder = imported(modeling=code)
    assert module.no_such_package is None and not finder.absent


def test_what_only_a_function_imports_fails_there(imported) -> None:
    module, finder = imported(modeling="def run():\n    import no_such_package")
    with pytest.raises(ImportError):
        module.run()
    assert not finder.absent


def test_other_code_sees_nothing_of_it(imported) -> None:
    imported(sibling="", modeling="import sibling, no_such_other")
    with pytest.raises(ImportError):
        importlib.import_module("no_such_package")
