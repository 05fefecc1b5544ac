"""What fuzzing does to a release and a target: changes as plain data, drawn by hypothesis and applied to a draft.

Places are numbers modulo how many there are, so that any change applies to any draft. Texts like `@deep:9@` stand for
what no JSON writer would write, and are replaced in the text of a file.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import strategies as st
from tests.support.fuzz_seeds import Draft, engine_facts, tensor_bytes

Change = tuple[Any, ...]
MOST_PLACES, MOST_DATA, MOST_TENSORS = 20_000, 2**22, 12_000
NUMBERS = [0, 1, -1, 2, 3, 7, 8, 128, 1000, 10**5, 10**6, 2**31 - 1, 2**31, 2**32, 2**40, 2**53 + 1, 2**62, 2**63 - 1,
           2**63, 2**64,
           -(2**63), -(2**70), 10**300, 0.0, -0.0, 0.5, 1.5, 1e-300, 1e308, -1e308, float("nan"), float("inf"),
           float("-inf"),
           "@digits:400@", "@digits:5000@"]  # fmt: skip
BIG = [1000, 10**5, 99_999, 10**6, 2**31, 2**40 - 1, 2**40]
TEXTS = ["", " ", ".", "..", "*", "**", "re:", "re:.*", "re:(a+)+$", "re:(.*)*x", "re:((a|a)*)*b", "re:[", "re:(?R)",
         "re:a{1000}{1000}",
         "re:(?P<x>.*)(?P=x)", "[/red]", "[bold", "\x1b[31m", "\0", "a\nb", "a\r\nverdict: pass", "\u2028", "\u202e",
         "é", "²", "𝟘",
         "\ud800", "x" * 300, "ab" * 50_000, "../../outside/secret.json", "/etc/passwd", "/dev/zero", "C:\\x", "{}",
         "{L}", "{E}",
         "{0.__class__}", "%s%n", "$(true)", "'; --", "<script>", "nan", "null", "1e5", "0x10", "-1", "999999999999",
         "a.b", "@deep:40@",
         "@deep:900@", "@deep:100000@", "@tables:40@", "@tables:100000@", "@long:100000@"]  # fmt: skip
WORDS = ["full_attention", "sliding_attention", "linear_attention", "fp8", "mxfp4", "nvfp4", "awq", "gptq",
         "compressed-tensors",
         "modelopt", "quark", "int", "float", "pack-quantized", "Linear", "lm_head", "yarn", "default", "bf16",
         "BF16", "F8_E4M3",
         "U8", "F4", "I32", "interleaved", "half_split", "floor", "mtp", "deepseek_v32", "transformers", "h200",
         "mi355x", "local",
         "5.0.0", "tokens > 1", "experts power_of_two", "tokens ** tokens > 9", "experts % 0 == 0",
         "train"]  # fmt: skip
KEYS = ["num_hidden_layers", "num_experts", "n_routed_experts", "num_key_value_heads", "num_attention_heads",
        "head_dim", "kv_lora_rank",
        "layer_types", "sliding_window", "rope_theta", "rope_scaling", "rope_parameters", "quantization_config",
        "text_config",
        "vision_config", "num_nextn_predict_layers", "mlp_only_layers", "moe_layer_freq", "ignore", "config_groups",
        "targets", "weights",
        "group_size", "weight_block_size", "auto_map", "tie_word_embeddings", "index_topk", "linear_attn_config",
        "intermediate_size",
        "moe_intermediate_size", "hidden_size", "vocab_size", "swiglu_limit", "dtype", "modules_to_not_convert",
        "layers", "__proto__",
        "__class__", "weight_map", "metadata", "", "é", "a\nb", "\ud800"]  # fmt: skip
NAMES = ["model.layers.0.self_attn.q_proj.weight", "model.layers.99999999999999999999.mlp.up_proj.weight",
         "model.layers.-1.x",
         "model.layers.4.mlp.experts.7.up_proj.weight", "model.layers.4.eh_proj.weight", "weight", "", ".", "..",
         "a" * 5000, "é.²",
         "model.layers.٣.x.weight", "a\nb.weight", "\x1b[31m.weight", "{L}.{E}", "{x}", "__metadata__",
         "model.layers.0",
         "model.layers.0.self_attn.indexer.wq_b.weight", "visual.blocks.0.attn.qkv.weight", "[/red].weight",
         "lm_head.weight",
         "model.layers.0.mlp.gate.e_score_correction_bias", "model.layers.0.self_attn.A_log"]  # fmt: skip
PARTS = ["weight", "weight_scale", "weight_scale_inv", "weight_packed", "qweight", "scales", "bias", "q_proj",
         "experts", "0", "1000000",
         "mlp", "shared_experts", "gate_up_proj", "weight_scale_2", "k_norm", "kv_a_proj_with_mqa", "", "x" * 200,
         "\n"]  # fmt: skip
DTYPES = ["BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "U8", "I8", "I32", "I64", "BOOL", "F4", "U4",
          "X", "", "\n", 7, None]
SHAPES = [[], [0], [1], [64], [64, 64], [128, 32], [3, 5, 7], [2**31], [2**62], [2**62] * 60, [1] * 70, [-1], [1.5],
          ["8"], None, {},
          [0, 2**62], [2**40, 2**40], [1, 10**30]]  # fmt: skip
LINKS = ["fifo", "folder", "loop", "nowhere", "../../outside/secret.json", "/etc/passwd", "/dev/zero",
         "/proc/self/environ", "inside",
         "empty", "unlinked"]  # fmt: skip
FILES = ["..data", ".hidden", "a\nb.json", "x.safetensors", "sub/model.safetensors", "a/b/c/d/e/f/g.py", "model.bin",
         "x.index.json", "é.py",
         "modeling_x.py", "hf_quant_config.json", "dayzero-manifest.json", "generation_config.json", "tokenizer.json",
         "params.json",
         "model-00009-of-00009.safetensors", "[/red].json", "configuration_some.py"]  # fmt: skip
CONTENTS = ["", "{}", "[]", "null", "{\"quantization\": []}", "{\"files\": {\"../x\": {}}}",
            "{\"weight_map\": {\"a\": \"../x\"}}", "\ufeff{}",
            "import os\nos.mkdir('ran')\n", "(" * 500, "x = " + "-" * 20_000 + "1", "def f(:\n", "\0",
            "from . import *\n", "{" * 100_000,
            "x = [" + "1," * 200_000 + "]", "a" + ".a" * 5000, "from " + "." * 300 + "x import y\n",
            "@deep:100000@"]  # fmt: skip

LINES = ["import antigravity", "import this", "from test.__main__ import x", "import fla.ops",
         "from transformers import X9", "from .nothing import y",
         "try:\n    import flash_attn\nexcept ImportError:\n    pass", "import socket, subprocess", "eval('1')",
         "exec(open('/etc/passwd').read())",
         "class SomeForCausalLM:\n    def __init__(self, config): self.x = config.rope_theta",
         "import os; os.mkdir('ran')", "raise SystemExit(3)",
         "from transformers.utils.import_utils import is_torch_fx_available", "import numpy.nothing",
         "from os.path import *", "open('x', 'w')",
         "x = getattr(config, 'a\\nb')", "from é import ñ", "import a.b.c.d"]  # fmt: skip

numbers, place = st.sampled_from(NUMBERS), st.integers(0, 2**20)
leaves = st.one_of(numbers, st.sampled_from(TEXTS), st.sampled_from(WORDS), st.none(), st.booleans(),
                   st.text(max_size=8),
                   st.integers(-10, 1000))  # fmt: skip
odd = st.one_of(leaves, st.lists(leaves, max_size=5), st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5),
                                                                      leaves, max_size=4),
                st.just([]), st.just({}), st.lists(st.lists(leaves, max_size=2), max_size=3))  # fmt: skip


def _on_tree(part: str) -> st.SearchStrategy[Change]:
    return st.one_of(
        st.tuples(st.just("tree"), st.just(part), st.just("set"), place, odd),
        st.tuples(st.just("tree"), st.just(part), st.just("set"), place, odd),
        st.tuples(st.just("tree"), st.just(part), st.just("delete"), place, st.none()),
        st.tuples(st.just("tree"), st.just(part), st.sampled_from(["rename", "add", "twice"]), place,
                  st.sampled_from(KEYS)),
        st.tuples(st.just("tree"), st.just(part), st.just("nest"), place, st.sampled_from([1, 2, 40])),
        st.tuples(st.just("tree"), st.just(part), st.just("grow"), place, st.sampled_from([0, 1, 2, 3, 1000])),
        st.tuples(st.just("tree"), st.just(part), st.just("move"), place, place),
    )  # fmt: skip


mild: st.SearchStrategy[Change] = st.one_of(
    st.tuples(st.just("tree"), st.just("config"), st.just("set"), place,
              st.one_of(st.integers(1, 12), st.sampled_from(BIG), st.sampled_from(WORDS), st.booleans(), st.none())),
    st.tuples(st.just("tree"), st.just("config"), st.just("delete"), place, st.none()),
    st.tuples(st.just("tree"), st.just("config"), st.just("grow"), place, st.sampled_from([1, 2, 3])),
    st.tuples(st.just("tree"), st.just("config"), st.sampled_from(["rename", "add"]), place, st.sampled_from(KEYS)),
    *[st.tuples(st.just("engine"), st.lists(st.tuples(place, place), min_size=1, max_size=12))] * 6,
    st.tuples(st.just("workload"), st.sampled_from([100, 10_000, 200_000]), st.sampled_from([1, 64, 5000]),
              st.sampled_from([512, 100_000])),
    st.tuples(st.just("layout"), st.lists(st.sampled_from([{"tp": 2}, {"tp": 8}, {"tp": 8, "ep": 8},
                                                           {"tp": 4, "pp": 2}, {"tp": 3}, {"tp": 8, "attention_tp": 2},
                                                           {"pp": 8}, {"tp": 8, "ep": 4}]), max_size=3,
                                          unique_by=str), place),
    st.tuples(st.just("device"), st.sampled_from(["h200", "mi300x", "ascend910b", "h100", "mi355x", "b200", "a100"]),
              st.integers(1, 16)),
    st.tuples(st.just("waivers"), st.lists(st.fixed_dictionaries({"rule": st.sampled_from(
        ["shard-heads", "weights-missing", "file-missing", "config-alias", "kv-layout"]), "reason": st.just("why"),
                                                                  "subject": st.sampled_from(
        ["*", "[", "a" * 100 + "*" * 50, "\n", "[/red]"]), "expires": st.sampled_from(["@date:2020-01-01@",
            "@date:9999-12-31@"])}), max_size=3)),
    st.tuples(st.just("partial"), st.booleans()),
    st.tuples(st.just("tensor"), st.sampled_from(["name", "part"]), place, place, st.booleans()),
    st.tuples(st.just("tensor"), st.just("drop"), place, place, st.booleans()),
    st.tuples(st.just("tensor"), st.just("dtype"), place, st.sampled_from(DTYPES[:15]), st.booleans()),
    st.tuples(st.just("tensor"), st.just("size"), place, st.integers(-3, 300), st.booleans()),
    st.tuples(st.just("tensor"), st.just("copy"), place, place, st.booleans()),
    st.tuples(st.just("tensor"), st.just("more"), place, st.sampled_from([2, 10, 200, 200, 3000]), st.booleans()),
    st.tuples(st.just("tree"), st.just("index"), st.sampled_from(["delete", "add"]), place, st.sampled_from(NAMES)),
    *[st.tuples(st.just("data"), st.sampled_from(["small", "ones", "any", "tails", "padded", "jump"]))] * 3,
    st.tuples(st.just("short"), place, st.integers(1, 5000)),
    st.tuples(st.just("code"), st.sampled_from(CONTENTS) | st.lists(st.sampled_from(LINES), max_size=8).map("\n".join)),
    st.tuples(st.just("link"), place, st.sampled_from(["unlinked", "inside", "nowhere"])),
    st.tuples(st.just("hub"), st.booleans()),
)  # fmt: skip
"""A change after which there mostly still is a release: rules get to see it."""
changes: st.SearchStrategy[Change] = st.one_of(
    mild, *[_on_tree("config")] * 4, _on_tree("target"), _on_tree("index"), _on_tree("headers"), _on_tree("files"),
    _on_tree("card"),
    st.tuples(st.just("layout"), st.lists(st.dictionaries(st.sampled_from(["tp", "pp", "ep", "dp", "cp",
        "attention_tp"]), st.sampled_from(
        [1, 2, 3, 4, 8, 16, 0, -1, 2**31]), max_size=3), max_size=3), place),
    st.tuples(st.just("waivers"), st.lists(st.fixed_dictionaries({"rule": st.sampled_from(["x", "*", "",
        "file-missing"]),
        "reason": st.sampled_from(["", "\n"]), "expires": st.sampled_from(["2030-01-01", 3, "\x00"])}), max_size=3)),
    st.tuples(st.just("tensor"), st.just("shape"), place, st.sampled_from(SHAPES), st.booleans()),
    st.tuples(st.just("tensor"), st.just("dtype"), place, st.sampled_from(DTYPES), st.booleans()),
    st.tuples(st.just("file"), st.sampled_from(FILES), st.sampled_from(CONTENTS)),
    st.tuples(st.just("bytes"), place, place, st.sampled_from(["cut", "flip", "put", "repeat", "swap"]),
              st.binary(min_size=1, max_size=9)),
    st.tuples(st.just("length"), place, st.sampled_from([0, 1, 2, 7, 8, 100, 10**8, 10**8 + 1, 2**31, 2**63,
                                                         2**64 - 1]) | st.integers(0, 4000)),
    st.tuples(st.just("text"), st.sampled_from(["target.toml", "config.json", "card.toml"]), place,
              st.sampled_from(["[", "]", "{", "}", "=", "\"", "'", "#", "\n", "[engine]\n", "[[layout]]\n", "\0", "é",
                               "\ud800", "1e999", "-", ",",
                               "a.b.c = 1\n", "'''", "1979-05-27", "x = " + "[" * 3000, "\xff", "@deep:100000@"])),
    st.tuples(st.just("link"), place, st.sampled_from(LINKS)),
)  # fmt: skip
"""Any change."""
cases = st.one_of(st.lists(mild, min_size=1, max_size=10), st.lists(mild, min_size=4, max_size=10),
                  st.lists(changes, max_size=5))
"""The changes of one case."""


def places(tree: Any) -> list[tuple[Any, Any]]:
    """(container, key or position) of everything in it."""
    found: list[tuple[Any, Any]] = []
    queue = [tree]
    while queue and len(found) < MOST_PLACES:
        at = queue.pop(0)
        for key, value in list(at.items() if isinstance(at, dict) else enumerate(at)):
            found.append((at, key))
            if isinstance(value, dict | list):
                queue.append(value)
    return found


def change_tree(tree: Any, what: str, pick: int, value: Any) -> None:
    """One change somewhere in JSON-like data."""
    where = places(tree)
    if not where:
        if isinstance(tree, dict):
            tree["some"] = value
        return
    at, key = where[pick % len(where)]
    value = copy.deepcopy(value)
    if what == "set":
        at[key] = value
    elif what == "delete":
        del at[key]
    elif what in ("rename", "twice", "add") and isinstance(at, dict):
        new = f"{key}@twice@" if what == "twice" else value
        at[new] = at[key] if what == "add" else at.pop(key)
        if what == "twice":
            at[key] = copy.deepcopy(at[new]) if pick % 2 else value
    elif what == "nest":
        for number in range(value):
            at[key] = {"a": at[key]} if (pick + number) % 2 else [at[key]]
    elif what == "grow" and isinstance(at[key], list | str) and len(at[key]) * value < 10**6:
        at[key] = at[key] * value
    elif what == "grow" and isinstance(at[key], int | float) and not isinstance(at[key], bool):
        at[key] = [0, at[key] + 1, at[key] * 2, at[key] - 1, at[key] * 1000][min(value, 4)]
    elif what == "move":
        other, name = where[value % len(where)]
        at[key] = copy.deepcopy(other[name])


def change_tensor(draft: Draft, what: str, pick: int, value: Any, alike: bool) -> None:
    """One change of a tensor, or of all that differ from it in numbers alone; the files stay consistent."""
    tensors = draft.tensors()
    if not tensors:
        return
    chosen = tensors[pick % len(tensors)]
    pattern = re.sub("[0-9]+", "#", str(chosen[0]))
    if what == "more":  # of one, or there would be millions
        alike, value = False, min(value, MOST_TENSORS - len(tensors))
    group = [tensor for tensor in tensors if re.sub("[0-9]+", "#", str(tensor[0])) == pattern] if alike else [chosen]
    for tensor in group:
        _change_one(draft, tensor, what, pick, value, tensors)


def _change_one(draft: Draft, tensor: list[Any], what: str, pick: int, value: Any, tensors: list[list[Any]]) -> None:
    parts = str(tensor[0]).split(".")
    if what == "name":
        tensor[0] = NAMES[value % len(NAMES)]
    elif what == "part":
        parts[value % len(parts)] = PARTS[(value // 7) % len(PARTS)]
        tensor[0] = ".".join(parts)
    elif what == "dtype":
        tensor[1] = value
    elif what == "shape":
        tensor[2] = copy.deepcopy(value)
    elif what == "size" and isinstance(tensor[2], list) and tensor[2] and isinstance(tensor[2][pick % len(tensor[2])],
        int):
        tensor[2][pick % len(tensor[2])] += value
    elif what == "copy":
        tensor[1:] = copy.deepcopy(tensors[value % len(tensors)][1:])
    for shard in draft.shards.values():
        if what == "drop":
            shard[:] = [other for other in shard if other is not tensor]
        elif what == "more" and any(other is tensor for other in shard):
            shard.extend([re.sub("[0-9]+", str(number), f"{tensor[0]}.{number}", count=1), tensor[1],
                          [1]] for number in range(value))


class Written:
    """A draft on its way to a folder: what its files hold, and what is to be done to them there."""

    def __init__(self, draft: Draft, drawn: list[Change]) -> None:
        self.draft, self.hub, self.data = draft, False, ""
        self.ends: dict[str, int] = {}
        self.links: list[Change] = []
        self.raw: list[Change] = []
        self.headers: dict[str, dict[str, Any]] = {}
        later = []
        for change in drawn:
            kind = change[0]
            if kind in ("bytes", "length", "text", "short"):
                self.raw.append(change)
            elif kind == "tree" and change[1] in ("index", "headers"):
                later.append(change)
            else:
                self._early(change)
        self._lay_out()
        for change in later:
            tree: Any = self.headers if change[1] == "headers" else self.index
            if isinstance(tree, dict | list):
                change_tree(tree, *change[2:])

    def _early(self, change: Change) -> None:
        kind, draft = change[0], self.draft
        if kind == "tree" and change[1] == "files":
            if draft.files:
                name = sorted(draft.files)[change[3] % len(draft.files)]
                with suppress(ValueError):
                    tree = json.loads(draft.files[name])
                    change_tree(tree, *change[2:])
                    draft.files[name] = _json(tree)
        elif kind == "tree":
            tree = getattr(draft, change[1])
            if isinstance(tree, dict | list):
                change_tree(tree, *change[2:])
        elif kind == "engine":
            facts = engine_facts(draft)
            engine = draft.target.setdefault("engine", {})
            for first, second in change[1] if isinstance(engine, dict) else ():
                key = list(facts)[first % len(facts)]
                engine[key] = facts[key][second % len(facts[key])]
        elif kind == "workload":
            draft.target["workload"] = {"input_tokens": change[1], "concurrency": change[2],
                                        "max_batched_tokens": change[3]}
        elif kind == "layout":
            draft.target["layout"] = change[1] if change[2] % 2 or not change[1] else change[1][0]
        elif kind == "waivers":
            draft.target["waivers"] = copy.deepcopy(change[1])
        elif kind == "device":
            draft.target["cluster"] = {"device": change[1], "devices_per_node": change[2], "nodes": 2}
        elif kind == "code":
            names = [name for name in draft.files if name.endswith(".py")] or ["modeling_some.py"]
            draft.files[names[-1]] = change[1]
        elif kind == "partial":
            draft.target["release"] = {"partial": change[1]}
        elif kind == "tensor":
            change_tensor(draft, *change[1:])
        elif kind == "file":
            draft.files[change[1]] = change[2]
        elif kind == "data":
            self.data = change[1]
        elif kind == "hub":
            self.hub = change[1]
        elif kind == "link":
            self.links.append(change)

    def _lay_out(self) -> None:
        for file, tensors in self.draft.shards.items():
            at, header = 0, {}
            for name, dtype, shape in tensors:
                end = at + tensor_bytes(dtype, shape)
                header[str(name)] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
                at = end
            self.headers[file], self.ends[file] = header, at
        self.index: Any = self.draft.index
        if self.index is None:
            self.index = {"metadata": {}, "weight_map": {name: file for file,
                                                         header in self.headers.items() for name in header}}

    def write(self, case: Path) -> Path:
        """Put release and target into the folder `case`; where the release is."""
        root = case / "models--a--b" / "snapshots" / ("0" * 40) if self.hub else case / "release"
        root.mkdir(parents=True)
        (case / "outside").mkdir()
        (case / "outside" / "secret.json").write_text('{"canary": "CANARY"}')
        contents = self._contents()
        self.short = {sorted(self.ends)[change[1] % len(self.ends)]: change[2]
                      for change in self.raw if change[0] == "short" and self.ends}  # fmt: skip
        for change in self.raw:
            _change_bytes(contents, change)
        (case / "target.toml").write_bytes(contents.pop("target.toml"))
        if "card.toml" in contents:
            (case / "card.toml").write_bytes(contents.pop("card.toml"))
            return case / "card.toml"
        for name, data in contents.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.write(data)
                if name in self.ends:
                    size = max(0, self.ends[name] - self.short.get(name, 0))
                    file.write(_values(self.data, size) if size < MOST_DATA else b"")
                    file.truncate(len(data) + size)
        if self.hub:
            _into_blobs(root)
        for change in self.links:
            _replace(root, change)
        return root

    def _contents(self) -> dict[str, bytes]:
        draft = self.draft
        found = {"target.toml": _toml(draft.target)}
        if draft.card is not None:
            return {**found, "card.toml": _toml(draft.card)}
        found |= {name: _bytes(text) for name, text in draft.files.items()}
        found["config.json"] = _bytes(_json(draft.config))
        if self.headers and self.index != "none":
            found["model.safetensors.index.json"] = _bytes(_json(self.index))
        for file, header in self.headers.items():
            text = _bytes(_json(header))
            text += b" " * (-len(text) % 8)
            found[file] = len(text).to_bytes(8, "little") + text
        return found


def _values(kind: str, size: int) -> bytes:
    """Data of tensors: small numbers, NaN in every format, any bytes, or small numbers and zeros; nothing: a hole."""
    if kind == "ones":
        return b"\xff" * size
    data = random.Random(size).randbytes(size) if kind else b""
    if kind in ("small", "tails", "padded", "jump"):
        data = bytes(byte & 0x3F for byte in data)
    if kind == "padded":
        data = bytes(0 if at % 128 > 95 else byte for at, byte in enumerate(data))
    if kind == "jump":
        data = data[:size // 2] + b"\x7e" * min(200, size - size // 2) + data[size // 2 + 200:]
    return data[:size * 3 // 4] if kind == "tails" else data


def _bytes(text: str) -> bytes:
    return _special(text).encode("utf-8", "surrogatepass")


def _json(value: Any) -> str:
    return json.dumps(value)


def _toml(value: Any) -> bytes:
    try:
        return _bytes(tomli_w.dumps(_without_none(value)))
    except (TypeError, ValueError, AttributeError, RecursionError):
        return _bytes("[cluster]\ndevice = 3\n")


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value if item is not None] if isinstance(value, list) else value


def _special(text: str) -> str:
    """What stands for something that no writer writes, replaced by it."""
    if "@" not in text:
        return text
    text = text.replace('@twice@"', '"').replace("@twice@", "")
    makers = {"deep": lambda n: "[" * n + "]" * n, "tables": lambda n: '{"a":' * n + "1" + "}" * n,
              "digits": lambda n: "9" * n,
              "long": lambda n: "[" + "1," * n + "1]"}  # fmt: skip
    text = re.sub('"@(deep|tables|digits|long):([0-9]+)@"', lambda match: makers[match[1]](int(match[2])), text)
    return re.sub('"@date:(.{10})@"', r"\1", text)


def _change_bytes(contents: dict[str, bytes], change: Change) -> None:
    if change[0] == "short":
        return
    if change[0] == "length":
        shards = [name for name in contents if name.endswith(".safetensors")]
        if shards:
            name = shards[change[1] % len(shards)]
            contents[name] = change[2].to_bytes(8, "little") + contents[name][8:]
        return
    if change[0] == "text":
        if change[1] in contents:
            data = contents[change[1]]
            at = change[2] % (len(data) + 1)
            contents[change[1]] = data[:at] + _bytes(change[3]) + data[at:]
        return
    name = sorted(contents)[change[1] % len(contents)]
    data, more = contents[name], change[4]
    at = change[2] % (len(data) + 1)
    contents[name] = {
        "cut": data[:at],
        "flip": data[:at] + bytes(byte ^ 0x55 for byte in data[at:at + len(more)]) + data[at + len(more):],
        "put": data[:at] + more + data[at:], "repeat": data[:at] + data[at // 2:], "swap": data[at:] + data[:at],
    }[change[3]]  # fmt: skip


def _into_blobs(root: Path) -> None:
    """The files of a hub's cache: links to blobs."""
    blobs = root.parent.parent / "blobs"
    blobs.mkdir()
    for number, path in enumerate([path for path in root.iterdir() if path.is_file()]):
        blob = blobs / f"{number:064x}"
        path.rename(blob)
        path.symlink_to(Path("../../blobs", blob.name))


def _replace(root: Path, change: Change) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    path = files[change[1] % len(files)] if files else root / "config.json"
    path.unlink(missing_ok=True)
    if change[2] == "fifo":
        os.mkfifo(path)
    elif change[2] == "folder":
        path.mkdir()
    elif change[2] == "empty":
        path.write_bytes(b"")
    elif change[2] != "unlinked":
        target = {"loop": path.name, "nowhere": "nothing-here", "inside": files[0].name if files else "x"}
        path.symlink_to(target.get(change[2], change[2]))
