"""Stages one after the other in this process: what crosses is found, and nothing else is needed."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers.modeling_outputs import CausalLMOutputWithPast  # noqa: E402

from dayzero.errors import NotPossible  # noqa: E402
from dayzero.runtime.pipeline import Call, Part, even_split, observe  # noqa: E402

IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 1]])


class _Layer(nn.Module):
    """Adds to a stream, and to a list of blocks [tokens, blocks, width] in every second layer; may keep something."""

    def __init__(self, number: int, keeps: dict[str, torch.Tensor] | None) -> None:
        super().__init__()
        self.number, self.keeps, self.kind = number, keeps, "odd" if number % 2 else "even"
        self.mix = nn.Linear(8, 8)

    def forward(self, hidden, blocks, first):
        if self.keeps is not None and self.number == 1:
            self.keeps["value"] = self.mix(hidden)
        if self.keeps is not None and self.number == 3:
            hidden = hidden + self.keeps["value"]
        if self.number % 2 == 0:
            blocks = torch.cat([blocks, hidden.reshape(-1, 1, 8)], dim=1)
        return self.mix(hidden) + blocks.mean(1).view_as(hidden) + first, blocks


class _Wide(nn.Module):
    """Residual blocks that grow, what the first layer gave is read by all later ones, a weight that is used directly,
    and a head that is tied to the embedding."""

    def __init__(self, *, keeps: bool = False) -> None:
        super().__init__()
        kept: dict[str, torch.Tensor] | None = {} if keeps else None
        self.embed = nn.Embedding(32, 8)
        self.layers = nn.ModuleList(_Layer(number, kept) for number in range(4))
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, 32, bias=False)
        self.head.weight = self.embed.weight

    def get_decoder(self):
        return self

    def forward(self, input_ids, use_cache=False, cache=None):
        hidden = self.embed(input_ids)
        blocks, first = hidden.new_zeros(hidden.shape[0] * hidden.shape[1], 0, 8), torch.zeros_like(hidden)
        for layer in self.layers:
            assert layer.kind in ("odd", "even")  # outer code reads it from layers of other stages too
            hidden, blocks = layer(hidden, blocks, first)
            first = hidden if layer.number == 0 else first
        return CausalLMOutputWithPast(logits=self.head(hidden * self.scale))


def _meta(model):
    """A copy without data, and the data by name."""
    values = {name: each.detach() for name, each in model.named_parameters(remove_duplicate=False)}
    return copy.deepcopy(model).to("meta"), values


def _filled(part: Part, values) -> int:
    """With what the part still has; elements."""
    count = 0
    for path, module in part.model.named_modules():
        for name, each in module._parameters.items():
            if each is not None:
                module._parameters[name] = nn.Parameter(values[f"{path}.{name}" if path else name])
                count += each.numel()
    return count


def _in_stages(model, stages, **arguments):
    whole, values = _meta(model)
    crossing: tuple = ()
    counts = []
    for stage in range(len(stages)):
        built = copy.deepcopy(whole)
        part = Part(built, observe(built), stages, stage)
        counts.append(_filled(part, values))
        with torch.no_grad():
            crossing = part.run(Call(IDS, arguments), crossing)
    return crossing[0], counts


@pytest.mark.parametrize("stages", [((0, 2), (2, 4)), ((0, 1), (1, 4)), ((0, 1), (1, 2), (2, 4))])
def test_a_stream_wider_than_the_hidden_size(stages) -> None:
    torch.manual_seed(0)
    model = _Wide()
    logits, counts = _in_stages(model, stages)
    torch.testing.assert_close(logits, model(IDS).logits, rtol=0, atol=0)
    layer, embedding = 8 * 8 + 8, 32 * 8
    held = [(end - first) * layer for first, end in stages]
    assert counts == [held[0] + embedding, *held[1:-1], held[-1] + 8 + embedding]


def test_what_crosses_is_what_later_stages_read() -> None:
    flow = observe(_meta(_Wide())[0])
    steps = {step.node: step for step in flow.steps}
    assert steps[3].needs == {2, 0} and steps[0].needs == {"embed"} and flow.final == {"head"}
    assert [sizes.dims for sizes in steps[1].output.tensors] == [
        ((1, 1, 0), (1, 0, 1), (8, 0, 0)), ((1, 1, 1), (1, 0, 0), (8, 0, 0))]
    assert steps[2].output.tensors[1].shape(3, 5) == (15, 2, 8)
    assert flow.direct == {"scale": frozenset({4})}


def test_layers_that_share_what_they_keep_stay_together() -> None:
    flow = observe(_meta(_Wide(keeps=True))[0])
    assert flow.kept == {(1, 3)}
    with pytest.raises(NotPossible, match="layer 3 reads what layer 1 keeps"):
        flow.check(((0, 2), (2, 4)))
    flow.check(((0, 1), (1, 4)))


@pytest.mark.parametrize("stages", [((0, 3), (2, 4)), ((0, 2), (2, 3)), ((0, 4), (4, 4))])
def test_stages_that_are_none(stages) -> None:
    with pytest.raises(NotPossible):
        observe(_meta(_Wide())[0]).check(stages)


def test_even_split() -> None:
    assert even_split(10, 3) == ((0, 4), (4, 7), (7, 10))


def test_a_model_of_the_library_with_a_cache() -> None:
    """Lengths of the past are right on every stage: the second step gives what the whole model gives."""
    from transformers import DynamicCache

    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=3,
                         num_attention_heads=2, num_key_value_heads=1)
    model = LlamaForCausalLM(config).eval()
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    _, values = _meta(model)
    parts = []
    for stage in range(3):
        built = LlamaForCausalLM(config).eval()
        rotary = copy.deepcopy(built.model.rotary_emb)
        built.to("meta").model.rotary_emb = rotary
        parts.append(Part(built, observe(built), even_split(3, 3), stage))
        _filled(parts[-1], values)
    caches, own = [DynamicCache(config=config) for _ in parts], DynamicCache(config=config)
    ids = IDS
    for _ in range(3):
        crossing: tuple = ()
        with torch.no_grad():
            for part, cache in zip(parts, caches, strict=True):
                crossing = part.run(Call(ids, {"attention_mask": mask, "cache": cache, "use_cache": True}), crossing)
            wanted = model(input_ids=ids, attention_mask=mask, cache=own, use_cache=True).logits
        torch.testing.assert_close(crossing[0], wanted, rtol=0, atol=0)
        ids = wanted[:, -1:].argmax(-1)
        mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], dim=1)
