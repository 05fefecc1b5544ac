"""HTTP servers that answer in the forms in which engines give the logprobs of tokens, of a model of a dozen tokens."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

VOCABULARY = 12


def table(tokens: list[int]) -> np.ndarray:
    """A model of one token's memory: logprobs [tokens - 1, vocabulary]."""
    logits = np.array([[np.sin(1.0 + token * 3 + other) for other in range(VOCABULARY)] for token in tokens[:-1]])
    return np.asarray(logits - np.log(np.exp(logits).sum(1, keepdims=True)))


def ranked(row: np.ndarray, top: int) -> list[int]:
    """The likeliest, best first."""
    return [int(each) for each in np.argsort(-row)[:top]]


def prompt_form(body: dict[str, Any]) -> tuple[int, Any]:
    """With tables of ids."""
    tokens, top = body["prompt"], body.get("prompt_logprobs")
    if top is None:
        return 200, {"choices": [{"text": "x", "prompt_logprobs": None, "logprobs": None}]}
    told: list[Any] = [None]
    for token, row in zip(tokens[1:], table(tokens), strict=True):
        told.append({str(each): {"logprob": row[each], "rank": 1, "decoded_token": "?"}
                     for each in {token, *ranked(row, top)}})
    return 200, {"choices": [{"text": "x", "prompt_logprobs": told}]}


def echo_form(body: dict[str, Any]) -> tuple[int, Any]:
    """The prompt comes back, as texts of tokens."""
    if not body.get("echo") or body.get("return_tokens_as_token_ids"):
        return 400, {"error": {"message": "unknown field" if body.get("echo") else "not here"}}
    tokens, rows = body["prompt"], table(body["prompt"])
    return 200, {"choices": [{"logprobs": {
        "tokens": [f"t{each}" for each in tokens] + ["new"],
        "token_logprobs": [None, *(row[token] for token, row in zip(tokens[1:], rows, strict=True)), -1.0],
        "top_logprobs": [None, *({f"t{each}": row[each] for each in ranked(row, body["logprobs"])} for row in rows),
                         {"new": -1.0}]}}], "usage": {"prompt_tokens": len(tokens), "completion_tokens": 1}}


def id_form(body: dict[str, Any]) -> tuple[int, Any]:
    """The prompt comes back, as ids."""
    if not body.get("echo"):
        return 400, {"error": "not here"}
    status, answer = echo_form(body | {"return_tokens_as_token_ids": False})
    told = answer["choices"][0]["logprobs"]
    told["tokens"] = [f"token_id:{name[1:]}" if name[0] == "t" else name for name in told["tokens"]]
    told["top_logprobs"] = [each and {f"token_id:{name[1:]}" if name[0] == "t" else name: value
                                      for name, value in each.items()} for each in told["top_logprobs"]]
    return status, answer


def native_form(body: dict[str, Any]) -> tuple[int, Any]:
    """Takes ids, and tells them."""
    tokens, rows, top = body["input_ids"], table(body["input_ids"]), body["top_logprobs_num"]
    own = [[None, tokens[0], None], *([row[token], token, None] for token, row in zip(tokens[1:], rows, strict=True))]
    tops = [None, *([[row[each], each, None] for each in ranked(row, top)] for row in rows)]
    return 200, {"meta_info": {"input_token_logprobs": own, "input_top_logprobs": tops}}


def forced_form(body: dict[str, Any]) -> tuple[int, Any]:
    """As a server whose grammars know token ids, but not 0, which ends texts."""
    given = body["prompt"]
    rest = [int(each) for each in re.findall(r"<\[(\d+)\]>", body.get("grammar", ""))]
    if 0 in rest:
        return 500, {"error": {"code": 500, "message": "Unexpected empty grammar stack"}}
    rest = rest or [body["logit_bias"][0][0]]
    return 200, {"tokens_evaluated": len(given), "completion_probabilities": [
        _chosen(token, row, body["n_probs"]) for token, row in zip(
            rest[:body["n_predict"]], table([*given, *rest])[len(given) - 1:], strict=True)]}


def _chosen(token: int, row: np.ndarray, top: int) -> dict[str, Any]:
    return {"id": token, "token": f"t{token}", "bytes": [116], "logprob": row[token], "top_logprobs": [
        {"id": each, "token": f"t{each}", "bytes": [116], "logprob": row[each]} for each in ranked(row, top)]}


def steps_form(body: dict[str, Any]) -> tuple[int, Any]:
    """Logprobs of what is chosen alone, and a bias that chooses it."""
    [row] = table([*body["prompt"][-1:], 0])
    biased = row.copy()
    for token, bias in body.get("logit_bias", {}).items():
        biased[int(token)] += bias
    return 200, {"usage": {"prompt_tokens": len(body["prompt"])}, "choices": [{"logprobs": {
        "content": [_chosen(int(biased.argmax()), row, body.get("logprobs", 1))]}}]}


def older_steps_form(body: dict[str, Any]) -> tuple[int, Any]:
    """The same in the older form, with ids as the names of tokens."""
    if body.get("echo"):
        return 400, {"error": "not here"}
    _, answer = steps_form(body)
    [told] = answer["choices"][0]["logprobs"]["content"]
    answer["choices"][0]["logprobs"] = {
        "tokens": [f"token_id:{told['id']}"], "token_logprobs": [told["logprob"]],
        "top_logprobs": [{f"token_id:{each['id']}": each["logprob"] for each in told["top_logprobs"]}]}
    return 200, answer


def written(tokens: Sequence[int]) -> str:
    """The text of tokens: a letter for each."""
    return "".join(chr(ord("a") + token) for token in tokens)


def prefill_form(body: dict[str, Any], first: tuple[int, ...] = ()) -> tuple[int, Any]:
    """Takes a text; `first`: what is put before every one."""
    if "inputs" not in body:
        return 422, "Failed to deserialize the JSON body: missing field `inputs`"
    tokens = [*first, *(ord(letter) - ord("a") for letter in body["inputs"])]
    values = [None, *(float(row[token]) for token, row in zip(tokens[1:], table(tokens), strict=True))]
    return 200, {"generated_text": "x", "details": {"finish_reason": "length", "generated_tokens": 1, "prefill": [
        {"id": token, "text": chr(ord("a") + token), "logprob": value}
        for token, value in zip(tokens, values, strict=True)], "tokens": []}}


@contextmanager
def serving(forms: dict[str, Any], models: Any = ("m",)) -> Iterator[str]:
    """The address of a server. `forms`: path -> what answers there, with (status, answer) or (status, answer, headers);
    `models`: what it lists; none: it has no list."""
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = bool(models) and self.path == "/v1/models"
            self._answer(200 if known else 404, {"data": [{"id": each} for each in models]} if known else {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            form = forms.get(self.path)
            self._answer(*(form(body) if form else (404, {"error": "no such path"})))

        def _answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            for name, each in (headers or {}).items():
                self.send_header(name, each)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


