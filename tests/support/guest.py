"""A runnable release with code of its own that does what released code does: experts in a list that is looped over with
counts on the host, in a latent space with a norm behind their sum; a delta rule with a decay, a convolution and a gate
of each head beside full attention; blocks of residuals that grow from layer to layer; a cache class of its own."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["VisitorForCausalLM"], "model_type": "visitor", "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 96,
    "moe_intermediate_size": 32, "latent_size": 48, "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 128,
    "residual_block": 2, "tie_word_embeddings": False, "dtype": "float32", "max_position_embeddings": 128,
    "auto_map": {"AutoConfig": "configuration_visitor.VisitorConfig",
                 "AutoModelForCausalLM": "modeling_visitor.VisitorForCausalLM"},
}  # fmt: skip

CONFIGURATION = '''
from transformers import PretrainedConfig


class VisitorConfig(PretrainedConfig):
    model_type = "visitor"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
'''

MODELING = '''
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_visitor import VisitorConfig


class VisitorCache:
    def __init__(self, layers):
        self.keys, self.values = [None] * layers, [None] * layers
        self.tails, self.states = [None] * layers, [None] * layers

    def update(self, key, value, layer):
        if self.keys[layer] is not None:
            key = torch.cat([self.keys[layer], key], dim=2)
            value = torch.cat([self.values[layer], value], dim=2)
        self.keys[layer], self.values[layer] = key, value
        return key, value


class VisitorNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class VisitorMLP(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(nn.functional.silu(gate) * up)


class VisitorExperts(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.top = config.num_experts_per_tok
        self.router = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.into = nn.Linear(config.hidden_size, config.latent_size, bias=False)
        self.experts = nn.ModuleList(
            [VisitorMLP(config.latent_size, config.moe_intermediate_size) for _ in range(config.num_experts)])
        self.norm = VisitorNorm(config.latent_size)
        self.out = nn.Linear(config.latent_size, config.hidden_size, bias=False)
        self.shared = VisitorMLP(config.hidden_size, config.intermediate_size)

    def forward(self, x):
        weight, chosen = self.router(x.view(-1, x.shape[-1])).sigmoid().topk(self.top, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        y = self.infer(self.into(x.view(-1, x.shape[-1])), chosen, weight)
        return self.out(self.norm(y)).view(x.shape) + self.shared(x)

    @torch.no_grad()
    def infer(self, x, chosen, weight):
        counts = chosen.new_zeros((chosen.shape[0], len(self.experts)))
        counts.scatter_(1, chosen, 1)
        order = chosen.view(-1).argsort()
        tokens, outputs, start = x[order // self.top], [], 0
        for number, count in enumerate(counts.sum(dim=0).cpu().numpy()):
            if count == 0:
                continue
            outputs.append(self.experts[number](tokens[start:start + count]))
            start += count
        joined = torch.cat(outputs, dim=0)
        back = torch.empty_like(joined)
        back[order] = joined
        return back.view(*chosen.shape, -1).mul_(weight.unsqueeze(-1)).sum(dim=1)


class VisitorDelta(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.index, self.heads, self.width = index, config.num_attention_heads, config.head_dim
        size = self.heads * self.width
        self.qkv = nn.Linear(config.hidden_size, 3 * size, bias=False)
        self.conv = nn.Conv1d(3 * size, 3 * size, 4, groups=3 * size, bias=False)
        self.rate = nn.Parameter(torch.zeros(self.heads))
        self.decay = nn.Linear(config.hidden_size, self.heads, bias=False)
        self.beta = nn.Linear(config.hidden_size, self.heads, bias=False)
        self.gate = nn.Linear(config.hidden_size, size, bias=False)
        self.norm = VisitorNorm(self.width)
        self.out = nn.Linear(size, config.hidden_size, bias=False)

    def forward(self, x, mask, cache):
        batch, new, _ = x.shape
        mixed = self.qkv(x).transpose(1, 2)
        tail = cache.tails[self.index]
        tail = mixed.new_zeros((batch, mixed.shape[1], 3)) if tail is None else tail
        mixed = torch.cat([tail, mixed], dim=-1)
        cache.tails[self.index] = mixed[..., -3:]
        mixed = nn.functional.silu(self.conv(mixed)).transpose(1, 2)
        q, k, v = (each.view(batch, new, self.heads, self.width) for each in mixed.chunk(3, dim=-1))
        q, k = (each * torch.rsqrt(each.pow(2).sum(-1, keepdim=True) + 1e-6) for each in (q, k))
        keep = torch.exp(-torch.exp(self.rate) * nn.functional.softplus(self.decay(x)))
        beta = self.beta(x).sigmoid()
        state = cache.states[self.index]
        state = q.new_zeros((batch, self.heads, self.width, self.width)) if state is None else state
        made = torch.zeros_like(v)
        for token in range(new):
            state = state * keep[:, token, :, None, None]
            held = (state * k[:, token, :, :, None]).sum(-2)
            state = state + k[:, token, :, :, None] * ((v[:, token] - held) * beta[:, token, :, None])[:, :, None]
            made[:, token] = (state * q[:, token, :, :, None]).sum(-2)
        cache.states[self.index] = state
        gate = self.gate(x).view(batch, new, self.heads, self.width).sigmoid()
        return self.out((self.norm(made) * gate).reshape(batch, new, -1))


class VisitorAttention(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.index, self.heads, size = index, config.num_attention_heads, config.num_attention_heads * config.head_dim
        for name in ("q", "k", "v"):
            setattr(self, name, nn.Linear(config.hidden_size, size, bias=False))
        self.sink = nn.Parameter(torch.zeros(self.heads))
        self.out = nn.Linear(size, config.hidden_size, bias=False)

    def forward(self, x, mask, cache):
        batch, new, _ = x.shape
        q, k, v = (getattr(self, name)(x).view(batch, new, self.heads, -1).transpose(1, 2) for name in ("q", "k", "v"))
        k, v = cache.update(k, v, self.index)
        scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + mask
        sink = self.sink.view(1, -1, 1, 1).expand(batch, -1, new, 1)
        scores = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
        return self.out((scores @ v).transpose(1, 2).contiguous().view(batch, new, -1))


class VisitorLayer(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.index, self.block = index, config.residual_block
        self.attention = (VisitorAttention if index == config.num_hidden_layers - 1 else VisitorDelta)(config, index)
        self.mlp = VisitorExperts(config) if index else VisitorMLP(config.hidden_size, config.intermediate_size)
        self.before, self.between = VisitorNorm(config.hidden_size), VisitorNorm(config.hidden_size)
        self.choice = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, x, blocks, mask, cache):
        if self.index % self.block == 0:
            blocks = torch.cat([blocks, x.unsqueeze(2)], dim=2)
        shares = self.choice(self.before(blocks)).squeeze(-1).softmax(-1)
        x = x + self.attention(self.before((blocks * shares.unsqueeze(-1)).sum(2)), mask, cache)
        return x + self.mlp(self.between(x)), blocks


class VisitorPreTrainedModel(PreTrainedModel):
    config_class = VisitorConfig
    base_model_prefix = "model"


class VisitorModel(VisitorPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([VisitorLayer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = VisitorNorm(config.hidden_size)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed_tokens

    def forward(self, input_ids, past_key_values=None, use_cache=True, **kwargs):
        cache = VisitorCache(len(self.layers)) if past_key_values is None else past_key_values
        x = self.embed_tokens(input_ids)
        past = 0 if cache.keys[-1] is None else cache.keys[-1].shape[2]
        new = x.shape[1]
        mask = torch.full((new, past + new), float("-inf")).triu(past + 1)
        blocks = x.new_zeros((x.shape[0], new, 0, x.shape[2]))
        for layer in self.layers:
            x, blocks = layer(x, blocks, mask, cache)
        return CausalLMOutputWithPast(logits=self.norm(x), past_key_values=cache)


class VisitorForCausalLM(VisitorPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.model = VisitorModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids, past_key_values=None, use_cache=True, **kwargs):
        made = self.model(input_ids, past_key_values=past_key_values)
        return CausalLMOutputWithPast(logits=self.lm_head(made.logits), past_key_values=made.past_key_values)
'''


def write(folder: Path, **changes: Any) -> Path:
    """The release, with weights."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "configuration_visitor.py").write_text(CONFIGURATION)
    (folder / "modeling_visitor.py").write_text(MODELING)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    made = model(folder)
    values = torch.Generator().manual_seed(0)
    state = {name: torch.randn(each.shape, generator=values) * (each.shape[-1] ** -0.5 if each.dim() > 1 else 0.3)
             + float("norm" in name or "before" in name or "between" in name)
             for name, each in made.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "__init__.py").unlink()
    return folder


def model(folder: Path) -> Any:
    """A model of its code, without its weights."""
    name = f"visitor_{abs(hash(folder))}"
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py",
                                                  submodule_search_locations=[str(folder)])
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    code = importlib.import_module(f"{name}.modeling_visitor")
    config = code.VisitorConfig(**{key: value for key, value in CONFIG.items() if key not in ("auto_map", "dtype")})
    return code.VisitorForCausalLM(config).eval()
