"""A release with code of its own, as it is published: a config with an auto_map, Python files, headers of tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.tiny_release import Tensors, write

HIDDEN, WIDTH, HEADS, EXPERTS, LAYERS, VOCAB = 32, 48, 4, 6, 2, 64
CONFIG: dict[str, Any] = {
    "architectures": ["GuestForCausalLM"], "model_type": "guest", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HIDDEN // HEADS, "intermediate_size": WIDTH,
    "moe_intermediate_size": WIDTH, "num_experts": EXPERTS, "num_experts_per_tok": 2, "vocab_size": VOCAB,
    "gate_scale": 2.5, "tie_word_embeddings": False, "dtype": "bfloat16", "rms_norm_eps": 1e-6,
    "max_position_embeddings": 128,
    "auto_map": {"AutoConfig": "configuration_guest.GuestConfig",
                 "AutoModelForCausalLM": "modeling_guest.GuestForCausalLM"},
}  # fmt: skip

CONFIGURATION = '''
from transformers import PretrainedConfig

class GuestConfig(PretrainedConfig):
    model_type = "guest"

    def __init__(self, hidden_size=8, gate_scale=1.0, unread=3, **kwargs):
        self.hidden_size = hidden_size
        self.gate_scale = gate_scale
        self.unread = unread
        super().__init__(**kwargs)
'''

MODELING = '''
import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import OutputRecorder
from transformers.utils.import_utils import is_torch_fx_available

from .configuration_guest import GuestConfig

WRAPPED = is_torch_fx_available()


class GuestMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.moe_intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.moe_intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(torch.relu(self.up_proj(x)))


class GuestLayer(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.index, self.heads, self.config = index, config.num_attention_heads, config
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(config.hidden_size, config.hidden_size, bias=False))
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = nn.ModuleList([GuestMLP(config) for _ in range(config.num_experts)])
        self.decay = nn.Parameter(torch.log(torch.empty(config.num_attention_heads)))

    def forward(self, x, cache):
        batch, new, width = x.shape
        q, k, v = (getattr(self, name)(x).view(batch, new, self.heads, -1).transpose(1, 2)
                   for name in ("q_proj", "k_proj", "v_proj"))
        if cache is not None:
            k, v = cache.update(k, v, self.index)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=new > 1)
        x = x + self.o_proj(mixed.transpose(1, 2).reshape(batch, new, width))
        weight, chosen = self.gate(x).mul(self.config.gate_scale).softmax(-1).topk(self.config.num_experts_per_tok)
        for number, expert in enumerate(self.experts):
            share = (weight * (chosen == number)).sum(-1, keepdim=True)
            x = x + share * expert(x)
        return x


class GuestPreTrainedModel(PreTrainedModel):
    config_class = GuestConfig
    base_model_prefix = "model"
    _can_record_outputs = {"hidden_states": OutputRecorder(GuestLayer, index=0)}


class GuestModel(GuestPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([GuestLayer(config, index) for index in range(config.num_hidden_layers)])
        self.post_init()


class GuestForCausalLM(GuestPreTrainedModel):
    _tied_weights_keys = ["lm_head.weight"]

    def __init__(self, config):
        super().__init__(config)
        self.model = GuestModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def tie_weights(self):
        return super().tie_weights()

    def forward(self, input_ids, past_key_values=None, use_cache=True, **kwargs):
        cache = past_key_values if past_key_values is not None else DynamicCache.from_legacy_cache()
        x = self.model.embed_tokens(input_ids)
        for layer in self.model.layers:
            x = layer(x, cache)
        return CausalLMOutputWithPast(logits=self.lm_head(x), past_key_values=cache)
'''

PARAMETERS = 2 * VOCAB * HIDDEN + LAYERS * (4 * HIDDEN**2 + EXPERTS * HIDDEN + EXPERTS * 2 * HIDDEN * WIDTH + HEADS)


def tensors(decay: int = HEADS) -> Tensors:
    """What the release stores; `decay`: length of a vector that its code declares as one for each head."""
    found: Tensors = {f"{name}.weight": ((VOCAB, HIDDEN), "BF16") for name in ("model.embed_tokens", "lm_head")}
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}"
        found |= {f"{stem}.{name}_proj.weight": ((HIDDEN, HIDDEN), "BF16") for name in "qkvo"}
        found |= {f"{stem}.gate.weight": ((EXPERTS, HIDDEN), "BF16"), f"{stem}.decay": ((decay,), "BF16")}
        for expert in range(EXPERTS):
            found |= {f"{stem}.experts.{expert}.up_proj.weight": ((WIDTH, HIDDEN), "BF16"),
                      f"{stem}.experts.{expert}.down_proj.weight": ((HIDDEN, WIDTH), "BF16")}
    return found


def guest(folder: Path, *, modeling: str = MODELING, configuration: str = CONFIGURATION, decay: int = HEADS,
          stored: Tensors | None = None, **config: Any) -> Path:
    """Write the release."""
    write(folder, tensors(decay) if stored is None else stored, CONFIG | config)
    (folder / "modeling_guest.py").write_text(modeling)
    (folder / "configuration_guest.py").write_text(configuration)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "guest"
    return folder
