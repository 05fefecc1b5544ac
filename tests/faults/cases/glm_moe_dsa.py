"""Faults of an indexer that chooses which tokens are attended to. They show in prompts beyond its top-k alone."""

from __future__ import annotations

from tests.faults.fault import Fault, attribute, code

_INDEXER, _ATTENTION = r"model\.layers\.\d\.self_attn\.indexer", r"model\.layers\.\d\.self_attn"

FAULTS = (
    Fault(
        "indexer's rotary layout",
        "glm_moe_dsa",
        (_INDEXER,),
        "interleav|rotary layout|other layout|half.?split|pairing",
        code(
            _INDEXER,
            apply_rotary_pos_emb_interleave=(
                ("q1, q2 = q[..., 0::2], q[..., 1::2]", "q1, q2 = q.chunk(2, -1)"),
                ("k1, k2 = k[..., 0::2], k[..., 1::2]", "k1, k2 = k.chunk(2, -1)"),
            ),
        ),
        "indexer",
        seen="transformers#46842",
    ),
    Fault(
        "half of the indexer's top-k",
        "glm_moe_dsa",
        (_INDEXER,),
        r"top.?k|shape",
        attribute(_INDEXER, index_topk=6),
        "indexer",
    ),
    Fault(
        "indexer's queries in the wrong head width",
        "glm_moe_dsa",
        (_INDEXER,),
        r"reshape|layout|order|permut|axes",
        code(
            _INDEXER,
            forward=(
                "q = q.view(batch_size, seq_len, self.n_heads, self.head_dim)",
                "q = q.view(batch_size, seq_len, self.head_dim, self.n_heads).transpose(2, 3)",
            ),
        ),
        "indexer",
        seen="vllm-ascend#14001",
    ),
    Fault(
        "indexer's scores not cut at zero",
        "glm_moe_dsa",
        (_INDEXER,),
        r"relu|identity instead",
        code(_INDEXER, forward=("scores = F.relu(scores)", "pass")),
        "indexer",
    ),
)
