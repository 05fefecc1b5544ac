"""The table of operators: names exist, each has one kind, contexts speak of kinds that exist."""

from __future__ import annotations

from collections import Counter

import pytest

from dayzero.data.operators import operators


def test_each_operator_has_one_kind() -> None:
    counts = Counter(op for names in operators().kinds.values() for op in names)
    assert [op for op, times in counts.items() if times > 1] == []


def test_contexts_take_kinds_that_exist() -> None:
    table = operators()
    assert {kind for context in table.contexts for kind in context.takes} <= set(table.kinds)


def test_every_name_is_an_operator_of_the_library() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers.integrations.moe")
    import dayzero.ops.impl  # noqa: F401  it registers those of its own

    table = operators()
    listed = [table.whole, table.ignored, table.views, table.picks, table.overwrites, table.puts, *table.kinds.values()]
    names = {op for group in listed for op in group} | {answer.op for answer in table.answers if "." in answer.op}
    unknown = [name for name in sorted(names)
               if not hasattr(getattr(torch.ops, name.partition(".")[0]), name.partition(".")[2])]
    assert unknown == []


def test_answers() -> None:
    answer = operators().answer("aten._local_scalar_dense")
    assert answer is not None and (answer.value, answer.after) == (0, {"aten.all": 1})
    assert operators().answer("aten.mm") is None
    assert (operators().kind("aten.mm"), operators().kind("not.known")) == ("linear", "other")
