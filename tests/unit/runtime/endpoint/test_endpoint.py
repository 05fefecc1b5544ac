"""A client against real HTTP servers that speak each of the known forms, and against those that speak none."""

from __future__ import annotations

import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.served import (
    echo_form,
    forced_form,
    id_form,
    native_form,
    older_steps_form,
    prefill_form,
    prompt_form,
    ranked,
    serving,
    steps_form,
    table,
    written,
)

from dayzero.errors import DayzeroError, EndpointError, UsageError
from dayzero.runtime.endpoint import Endpoint
from dayzero.runtime.golden import open_dump
from dayzero.runtime.golden.logprobs import logprobs
from dayzero.stages.check.recording import record_endpoint

TOKENS = (3, 1, 4, 1, 5, 9, 2, 6)
FORMS = {"prompt_logprobs": {"/v1/completions": prompt_form}, "input logprobs": {"/generate": native_form},
         "echo": {"/v1/completions": echo_form}, "echo with token ids": {"/v1/completions": id_form},
         "a grammar of token ids": {"/completion": forced_form}, "prefill details": {"/generate": prefill_form},
         "one token at a time": {"/v1/completions": steps_form},
         "one token at a time, older": {"/v1/completions": older_steps_form}}
UNNAMED = ("echo", "prefill details")
"""Forms that do not tell which tokens are the likeliest."""


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_same_logprobs(form: str) -> None:
    with serving(FORMS[form]) as url:
        endpoint = Endpoint(url, text=written)
        scored = endpoint.score(TOKENS, top=3)
    assert (endpoint.way.name, endpoint.model) == (form.partition(",")[0], "m")
    wanted = table(list(TOKENS))
    np.testing.assert_allclose(scored.logprobs, [row[token] for token, row in zip(TOKENS[1:], wanted, strict=True)])
    likeliest = [np.sort(row)[::-1][:3] if form != "prefill details" else [-np.inf] * 3 for row in wanted]
    np.testing.assert_allclose(scored.top_logprobs, likeliest)
    ids = [ranked(row, 3) for row in wanted]
    assert scored.top_ids.tolist() == (ids if form not in UNNAMED else [[-1] * 3] * 7)


def test_a_dump_of_a_server_is_read_like_any_other(tmp_path: Path) -> None:
    with serving(FORMS["prompt_logprobs"]) as url:
        made = record_endpoint(Endpoint(url), [TOKENS, TOKENS[:3]], tmp_path / "d", top=2)
    assert (made.sequences, made.entries, made.notes) == (2, 6, ())
    with open_dump(tmp_path / "d") as dump:
        told = logprobs(dump, top=2)
        assert dump.sequences[0].tolist() == list(TOKENS)
        assert dump.ranks[0].origin.release == "m"
    wanted = table(list(TOKENS))
    np.testing.assert_allclose(told[0].tokens, [row[token] for token, row in zip(TOKENS[1:], wanted, strict=True)])
    assert told[1].top_ids.tolist() == [ranked(row, 2) for row in wanted[:2]]


@pytest.mark.parametrize(("form", "said"), [
    ("input logprobs", "tells 2 of the 4 likeliest"), ("echo", "does not tell which tokens are the likeliest")])
def test_likeliest_tokens_that_are_left_out_are_told(form: str, said: str, tmp_path: Path) -> None:
    def fewer(body: dict[str, Any]) -> tuple[int, Any]:
        return native_form(body | {"top_logprobs_num": min(2, body["top_logprobs_num"])})

    with serving({"/generate": fewer} if form == "input logprobs" else FORMS[form]) as url:
        [note] = record_endpoint(Endpoint(url), [TOKENS], tmp_path / "d", top=4).notes
    assert said in note


def test_single_tokens_are_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    with serving(FORMS["prompt_logprobs"]) as url, pytest.raises(UsageError, match="1 of 2 sequences have one token"):
        record_endpoint(Endpoint(url), [TOKENS, (3,)], tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_key_is_not_handed_on_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(200 if self.path == "/there" else 302)
            self.send_header("Location", "/there")
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "m"}]}' if self.path == "/there" else b"")

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        Endpoint(f"http://127.0.0.1:{server.server_address[1]}/v1", key="secret")
        server.shutdown()
    assert asked == [("/v1/models", "Bearer secret"), ("/there", None)]


def test_a_server_that_gives_none_is_refused_with_what_was_tried() -> None:
    silent = {"/v1/completions": lambda body: (200, {"choices": [{"text": "x", "logprobs": None}]})}
    with serving(silent) as url, pytest.raises(EndpointError, match="no logprobs of given tokens") as refused:
        _ = Endpoint(url).way
    assert all(name in refused.value.message for name in ("prompt_logprobs", "input logprobs: 404", "echo"))


def test_a_grammar_is_halved_around_tokens_that_it_does_not_take() -> None:
    tokens = (3, 0, 1, 0, 0, 5)
    with serving({"/completion": forced_form}) as url:
        scored = Endpoint(url).score(tokens, top=2)
    rows = table(list(tokens))
    np.testing.assert_allclose(scored.logprobs, [row[token] for token, row in zip(tokens[1:], rows, strict=True)])
    assert scored.top_ids.tolist() == [ranked(row, 2) for row in rows]


def test_logprobs_after_a_bias_are_none_of_the_model() -> None:
    def after(body: dict[str, Any]) -> tuple[int, Any]:
        status, answer = steps_form(body)
        for each in answer["choices"][0]["logprobs"]["content"]:
            each["logprob"] = -1e-9
        return status, answer

    with serving({"/v1/completions": after}) as url, pytest.raises(EndpointError, match="those after the bias"):
        Endpoint(url).score(TOKENS)


def test_a_text_form_needs_the_text_and_says_so() -> None:
    with serving({"/generate": prefill_form}) as url:
        with pytest.raises(EndpointError, match="name a release with --tokenizer"):
            Endpoint(url).score(TOKENS)
        with pytest.raises(EndpointError, match=r"token 1 at position 0, where 3 was given"):
            Endpoint(url, text=lambda tokens: written(tokens)[1:]).score(TOKENS)


def test_what_a_server_puts_in_front_is_told_and_not_compared_shifted() -> None:
    def echoed(body: dict[str, Any]) -> tuple[int, Any]:
        """Puts a token of its own in front, and writes none: as many logprobs as with a new one."""
        if not body.get("echo") or body.get("return_tokens_as_token_ids"):
            return 400, {"error": "not here"}
        _, answer = echo_form(body | {"prompt": [11, *body["prompt"]]})
        told = answer["choices"][0]["logprobs"]
        answer["choices"][0]["logprobs"] = {name: values[:-1] for name, values in told.items()}
        return 200, answer

    def uncounted(body: dict[str, Any]) -> tuple[int, Any]:
        status, answer = echoed(body)
        answer.pop("usage", None)
        return status, answer

    with serving({"/generate": partial(prefill_form, first=(11,))}) as url, pytest.raises(
            EndpointError, match="8 tokens and looked at others: it put 11 in front"):
        Endpoint(url, text=written).score(TOKENS)
    with serving({"/v1/completions": echoed}) as url, pytest.raises(EndpointError, match="it saw 4 tokens where 3"):
        Endpoint(url).score(TOKENS)
    with serving({"/v1/completions": uncounted}) as url, pytest.raises(EndpointError, match="could not be told apart"):
        Endpoint(url).score(TOKENS)


def test_logprobs_of_other_tokens_are_not_taken_for_those_of_the_prompt() -> None:
    def other(body: dict[str, Any]) -> tuple[int, Any]:
        status, answer = prompt_form(body | {"prompt": [(each + (len(body["prompt"]) > 3)) % 12
                                                        for each in body["prompt"]]})
        return status, answer

    with serving({"/v1/completions": other}) as url, pytest.raises(EndpointError, match="at position 2, where token 4"):
        Endpoint(url).score(TOKENS, top=1)


def test_a_logprob_that_is_no_number_is_told_with_its_place() -> None:
    def broken(body: dict[str, Any]) -> tuple[int, Any]:
        status, answer = prompt_form(body)
        if len(body["prompt"]) > 3:
            answer["choices"][0]["prompt_logprobs"][5]["9"]["logprob"] = float("nan")
        return status, answer

    def absent(body: dict[str, Any]) -> tuple[int, Any]:
        status, answer = native_form(body)
        if len(body["input_ids"]) > 3:
            answer["meta_info"]["input_token_logprobs"][6][0] = None
        return status, answer

    with serving({"/v1/completions": broken}) as url, pytest.raises(
            EndpointError, match="1 of 7 logprobs that are none, first nan for token 9 at position 5"):
        Endpoint(url).score(TOKENS)
    with serving({"/generate": absent}) as url, pytest.raises(EndpointError, match="nan for token 2 at position 6"):
        Endpoint(url).score(TOKENS)


def test_a_server_that_sees_other_tokens_is_found_out() -> None:
    def shifted(body: dict[str, Any]) -> tuple[int, Any]:
        status, answer = native_form(body)
        answer["meta_info"]["input_token_logprobs"][1][1] += len(body["input_ids"]) > 3
        return status, answer

    with serving({"/generate": shifted}) as url, pytest.raises(
            EndpointError, match="token 2 at position 1, where 1 was given"):
        Endpoint(url).score(TOKENS)


@pytest.mark.parametrize(("answer", "said"), [
    ((500, {"error": "out of memory"}), "refuses 8 tokens with 5 of the likeliest: 500"),
    ((200, b"<html>"), "something else than JSON"),
    ((200, {"meta_info": {}}), "another form"),
    ((200, {"meta_info": {"input_token_logprobs": [[None, 3, ""], *([0.5, each, ""] for each in TOKENS[1:])]}}),
     "none")])
def test_answers_that_are_none(answer: Any, said: str, tmp_path: Path) -> None:
    forms = {"/generate": lambda body: native_form(body) if len(body["input_ids"]) == 3 else answer}
    with serving(forms) as url, pytest.raises(EndpointError, match=said):
        record_endpoint(Endpoint(url), [TOKENS], tmp_path / "d")
    with open_dump(tmp_path / "d", unfinished=True) as dump:
        assert said.split(":")[0] in dump.ranks[0].failure


@pytest.mark.parametrize(("url", "kind"), [
    ("http://127.0.0.1:9/v1", EndpointError), ("ftp://host", UsageError), ("nonsense", UsageError)])
def test_addresses_where_nobody_is(url: str, kind: type[DayzeroError]) -> None:
    with pytest.raises(kind):
        Endpoint(url, timeout_s=5)


def test_models_are_told_apart() -> None:
    with serving({}, ("one", "two")) as url:
        assert Endpoint(url, model="two").model == "two"
        with pytest.raises(UsageError, match="serves 2 models"):
            Endpoint(url)
        with pytest.raises(UsageError) as refused:
            Endpoint(url, model="tow")
        assert 'did you mean "two"' in refused.value.hint
        with pytest.raises(EndpointError, match="no list of models"):
            Endpoint(url.removesuffix("/v1"))
    with serving(FORMS["input logprobs"], ()) as url:  # it serves what is named
        assert len(Endpoint(url, model="m").score(TOKENS).logprobs) == 7
