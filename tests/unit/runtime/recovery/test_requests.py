"""What is asked is known until it is over, whoever has been told of it."""

from __future__ import annotations

from dayzero.errors import NotPossible, StageError, UsageError
from dayzero.runtime.recovery.messages import Asked, Failed, Logits, Token
from dayzero.runtime.recovery.requests import CANCELLED, Answer, Requests, error_of
from dayzero.schema import Sampling


def _requests(*asked: Asked) -> tuple[Requests, list[Answer], list[tuple[int, str]]]:
    requests, heard = Requests(), list[tuple[int, str]]()
    answers = [Answer(each, lambda one: heard.append((len(one.tokens), one.finish))) for each in asked]
    for each in answers:
        requests.add(each)
    return requests, answers, heard


def test_members_that_know_nothing_are_told_where_it_stands() -> None:
    drawn = Sampling(0.5, seed=3)
    requests, answers, heard = _requests(Asked(1, (5, 6), 3, sampling=drawn, stops=(9,)), Asked(2, (7,), 2))
    assert requests.news() == ((answers[0].asked, answers[1].asked), ())
    assert requests.news() == ((), ())
    assert requests.token(Token(1, 1, 42, ""))
    assert requests.every() == (Asked(1, (5, 6, 42), 2, sampling=drawn, stops=(9,)), Asked(2, (7,), 2))
    assert requests.tokens == (1, 4)
    assert requests.token(Token(1, 1, 9, "stop")) and not requests.token(Token(1, 1, 8, ""))
    assert answers[0].tokens == [42, 9] and answers[0].finish == "stop" and answers[0].done
    assert heard == [(1, ""), (2, "stop")]
    assert answers[0].began <= answers[0].first <= answers[0].last


def test_what_is_cancelled_is_told_once_and_what_was_never_told_is_not_begun() -> None:
    requests, answers, heard = _requests(Asked(1, (5,), 3), Asked(2, (7,), 2))
    requests.news()
    requests.add(late := Answer(Asked(3, (8,), 1)))
    requests.cancel(1)
    requests.cancel(3)
    requests.cancel(77)
    assert requests.news() == ((), (1, 3))
    assert answers[0].finish == late.finish == CANCELLED
    assert list(requests.open) == [2] and heard == [(0, CANCELLED)]


def test_errors_and_logits_end_a_request() -> None:
    requests, answers, _ = _requests(Asked(1, (5,), 1, logits=True), Asked(2, (7,), 2), Asked(3, (7,), 2))
    requests.logits(Logits(1, 1, 4, b"\0" * 16))
    requests.fail(2, StageError("too long", "shorter"))
    assert answers[0].done and answers[1].done and not answers[2].done
    requests.fail_all(NotPossible("no memory"))
    assert answers[2].error is not None and not requests.open


def test_errors_of_members_are_raised_as_what_they_are() -> None:
    made = error_of(Failed(1, "no such layout", error="UsageError", hint="another"))
    assert isinstance(made, UsageError) and (made.message, made.hint) == ("no such layout", "another")
    assert isinstance(error_of(Failed(1, "no device", error="NotPossible")), NotPossible)
    assert isinstance(error_of(Failed(1, "?", error="SystemExit")), StageError)
