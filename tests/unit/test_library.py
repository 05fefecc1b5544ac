"""What is said to a loaded model, before anything of it is sent: the processes that compute are for everybody."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from dayzero.errors import NotPossible, StageError, UsageError
from dayzero.library import _KEPT, Loaded, _called, _logs, _texts, _wanted, load


@pytest.fixture
def model() -> Loaded:
    session: Any = SimpleNamespace(release=SimpleNamespace(model=SimpleNamespace(vocab_size=10)))
    return Loaded(session, ExitStack())


@pytest.mark.parametrize("said", [
    {"max_new_tokens": 1.5}, {"max_new_tokens": "5"}, {"max_new_tokens": True}, {"temperature": "hot"},
    {"temperature": None}, {"top_k": 1.5}, {"top_k": None}, {"seed": None}, {"seed": 1.5}, {"released": "x"},
    {"stop": None}, {"stop": [5]}, {"stop": b"x"}, {"stop_tokens": 5}, {"stop_tokens": "ab"}, {"stop_tokens": [1.5]},
    {"max_tokens": 2}, {"do_sample": True}, {"samples": 2},
])  # fmt: skip
def test_what_cannot_be_said_of_a_text(said: Any) -> None:
    with pytest.raises(UsageError, match="what is said of the text"):
        _wanted(said)


def test_what_is_wrong_is_told_in_words() -> None:
    with pytest.raises(UsageError) as caught:
        _wanted({"max_new_tokens": "5"})  # type: ignore[typeddict-item]
    assert caught.value.message == "what is said of the text cannot be: Expected int, got str for max_new_tokens"


def test_what_can_be() -> None:
    made = _wanted({"max_new_tokens": 3, "temperature": 1, "stop": "x", "stop_tokens": [1, 2]}, 2)
    assert (made.max_new_tokens, made.samples, made.stop, made.stop_tokens) == (3, 2, ("x",), (1, 2))
    assert made.sampling.temperature == 1.0 and _wanted({"stop": ["x", "y"]}).stop == ("x", "y")


@pytest.mark.parametrize("prompts", [None, 5, [], (), [5], ["x", None], "\ud800", [b"x"]])
def test_what_are_no_prompts(prompts: Any) -> None:
    with pytest.raises(UsageError):
        _texts(prompts)


def test_prompts() -> None:
    assert _texts("x") == ("x",) and _texts(each for each in "ab") == ("a", "b")


@pytest.mark.parametrize("rows", [
    None, 5, [], [[]], "abc", ["ab"], [b"ab"], [["a"]], [[1.0]], [[float("nan")]], [[True]], [1, 2], [[1], []],
])  # fmt: skip
def test_what_are_no_rows_of_tokens(model: Loaded, rows: Any) -> None:
    with pytest.raises(UsageError, match="not rows of token ids"):
        model._rows(rows)


def test_rows_of_tokens(model: Loaded) -> None:
    import numpy as np

    assert model._rows([[1, 2], np.array([3, 9])]) == [(1, 2), (3, 9)]
    with pytest.raises(UsageError, match="there is no token 10: the model's are 0 to 9"):
        model._rows([[10]])


def test_a_closed_model_is_not_entered(model: Loaded) -> None:
    model.close()
    with pytest.raises(UsageError, match="has been closed"), model:
        pass


@pytest.mark.parametrize("wrong", [{"layout": 5}, {"layout": ["tp=2"]}, {"plan": 5}, {"host_memory": "1GB"},
                                   {"spares": 1.5}, {"device_memory": None}])
def test_arguments_of_another_type(wrong: Any) -> None:
    pytest.importorskip("torch")
    with pytest.raises(UsageError):
        load("nowhere", **wrong)


@pytest.mark.parametrize("error", [
    UsageError("too long", "ask for less with --max-new-tokens, or --layout"),
    NotPossible("no room", "ask for less with --max-new-tokens, or --layout"),
])  # fmt: skip
def test_hints_name_the_arguments_of_a_call(error: UsageError | NotPossible) -> None:
    @_called()
    def call() -> None:
        raise error

    with pytest.raises(type(error)):
        call()
    assert error.hint == "ask for less with max_new_tokens=, or layout="


def test_logs_are_there_as_long_as_an_error_may_name_them() -> None:
    with pytest.raises(UsageError), _logs() as gone:
        raise UsageError("wrong", "do it right")
    with _logs() as also_gone:
        assert also_gone.is_dir()
    with pytest.raises(StageError), _logs() as kept:
        raise StageError("a rank died", f"see the logs in {kept}")
    assert not gone.exists() and not also_gone.exists() and kept.is_dir()
    _KEPT.close()
    assert not kept.exists()
