"""A model whose code insists on its own cache class: lists that grow, tuples of states, a counter."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dayzero.errors import NotPossible  # noqa: E402
from dayzero.runtime.pages import ObservedPages, Room, beginning  # noqa: E402
from dayzero.runtime.serving import Engine, Request, Worker, model_forward  # noqa: E402

WIDTH, VOCABULARY = 8, 31


class OwnCache:
    """Keys grow with the tokens in the third dimension; states are a tuple; all empty at first."""

    def __init__(self) -> None:
        self.keys: list[Any] = [None, None]
        self.states: list[Any] = [None, None]
        self.seen = 0


class OwnModel(torch.nn.Module):
    """One layer that attends, and one whose state decays; rows may be padded on the left."""

    def __init__(self, cache_class: type = OwnCache) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.key, self.query = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)
        self.cache_class = cache_class

    def forward(self, input_ids: Any, attention_mask: Any = None, past_key_values: Any = None,
                use_cache: bool = True) -> Any:
        """Logits and the cache."""
        cache = self.cache_class() if past_key_values is None else past_key_values
        assert isinstance(cache, self.cache_class)
        hidden = self.embed(input_ids)
        keys = self.key(hidden)[:, None]
        cache.keys[0] = keys if cache.keys[0] is None else torch.cat([cache.keys[0], keys], 2)
        cache.seen += input_ids.shape[1]
        assert cache.keys[0].shape[2] == cache.seen
        scores = self.query(hidden)[:, None] @ cache.keys[0].transpose(2, 3)
        columns = torch.arange(cache.seen)
        visible = columns <= columns[-input_ids.shape[1]:, None]
        if attention_mask is not None:
            visible = visible & attention_mask[:, None, None].bool()
        hidden = hidden + (scores.masked_fill(~visible, -1e9).softmax(-1) @ cache.keys[0])[:, 0]
        state = torch.zeros(len(hidden), WIDTH) if cache.states[1] is None else cache.states[1][0]
        outputs = []
        for step in range(hidden.shape[1]):
            state = 0.5 * state + hidden[:, step]
            outputs.append(state)
        cache.states[1] = (state,)
        return SimpleNamespace(logits=self.head(torch.stack(outputs, 1)), past_key_values=cache)


def _alone(model: Any, tokens: tuple[int, ...], new: int) -> list[int]:
    known = list(tokens)
    for _ in range(new):
        known.append(int(model(torch.tensor([known])).logits[0, -1].argmax()))
    return known[len(tokens):]


@pytest.mark.parametrize("preempt", ["recompute", "host", "disk"])
@pytest.mark.parametrize("share", [True, False])
def test_any_class_is_paged_by_watching_it(tmp_path: Path, preempt: str, share: bool) -> None:
    model = OwnModel().eval()
    pages = ObservedPages(beginning(model), block_tokens=4, folder=tmp_path)
    forward = model_forward(model)
    parts = pages.measure(lambda call, cache: forward(call.input_ids, call.position_ids, call.mask, cache))
    assert list(parts.values()) == [(4 * WIDTH * 4,), (WIDTH * 4,)]
    room = Room(6, (3, 4))
    pages.allocate(room)
    engine = Engine(Worker(forward, pages).run, pages.groups, [room], block_tokens=4, budget=9, preempt=preempt,
                    uniform=pages.uniform, share=share)
    prompts = [(3, 4, 5), (3, 4, 5, 6, 7, 8, 9, 10, 11), (12,), tuple(range(1, 20)), (3, 4, 5, 6, 7, 8, 9, 10, 12)]
    with torch.no_grad():
        expected = [_alone(model, prompt, 12) for prompt in prompts]
        streams = [engine.submit(Request(prompt, 12)) for prompt in prompts]
        engine.work()
    assert [stream.result() for stream in streams] == expected
    assert engine.statistics.preempted > 0


class Windowed(OwnCache):
    """One that also counts in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = 0


def test_what_is_not_understood_is_refused() -> None:
    model = OwnModel(Windowed).eval()

    def begin(batch: int, tokens: int) -> Any:
        cache = beginning(model)(batch, tokens)
        cache.halves = tokens // 2
        return cache

    with pytest.raises(NotPossible, match="halves"):
        ObservedPages(begin)
