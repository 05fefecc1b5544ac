"""What a file imports, which of it is guarded, and what a module defines."""

from __future__ import annotations

import ast

from dayzero.stages.preflight.code.imports import bindings, needs


def found(text: str) -> list[tuple[str, bool, bool]]:
    return [(need.dotted, need.guarded, need.lazy) for need in needs(ast.parse(text)) if not need.used]


def test_kinds_of_import() -> None:
    assert found("import a.b as c\nfrom d import e, f\nfrom g import *\nclass H:\n    import i\n") == [
        ("a.b", False, False), ("d.e", False, False), ("d.f", False, False), ("g", False, False), ("i", False, False)]
    assert found("def f():\n    import a\n") == [("a", False, True)]


def test_guards() -> None:
    assert found("try:\n    import a\nexcept (ImportError, OSError):\n    a = None\nelse:\n    import b\n") == [
        ("a", True, False), ("b", True, False)]
    assert found("try:\n    import a\nexcept ValueError:\n    pass\n") == [("a", False, False)]
    assert found("try:\n    import a\nexcept ImportError as error:\n    raise ImportError('!') from error\n") == [
        ("a", False, False)]
    assert found("if is_flash_attn_2_available():\n    import a\nelse:\n    import b\n") == [
        ("a", True, False), ("b", True, False)]
    assert found("if TYPE_CHECKING:\n    import a\nelse:\n    import b\n") == [("a", True, False), ("b", False, False)]


def test_a_name_that_the_file_puts_there_itself() -> None:
    """moonshotai/Kimi-K3: modeling_kimi_k3.py puts a renamed class back before it imports it."""
    text = "from t import activations\nactivations.Old = activations.New\nfrom t.activations import Old\n"
    assert found(text) == [("t.activations", False, False)]


def test_bindings() -> None:
    names, complete = bindings(ast.parse(
        "import a.b\nfrom c import d as e\nf = 1\ng: int = 2\nif x:\n    class H:\n        i = 1\ntry:\n    def j():\n"
        "        k = 1\nexcept E:\n    pass\nfor m in (): n, (o, *p) = q\n"))
    assert names == {"a", "e", "f", "g", "H", "j", "m", "n", "o", "p"}
    assert complete
    for open_ended in ("from a import *", "def __getattr__(name): ...", "globals().update(x)",
                       "import sys\nsys.modules[__name__] = Lazy()"):
        assert not bindings(ast.parse(open_ended))[1]
