"""Cards: the shipped ones have their published totals, and a wrong card says what is wrong with it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dayzero.errors import CardError
from dayzero.stages.read.card import read_card

SMALL = """
[card]
name = "small"
[config]
hidden_size = 64
num_hidden_layers = 2
num_attention_heads = 4
intermediate_size = 128
vocab_size = 100
"""


@pytest.fixture
def card(tmp_path: Path) -> Path:
    return tmp_path / "small.toml"


# (tensors, bytes, parameters): the K3 and V3 rows are the index's total_size and the headers' sums of the published
# checkpoints; of the others the parameters are what transformers 5.24 builds from the published configs (of Kimi-K2.5
# it builds 23,040 fewer: the router's corrections are no parameters there).
@pytest.mark.parametrize(("name", "tensors", "size", "parameters"), [
    ("kimi-k3", 497_220, 1_560_860_324_864, 2_779_931_837_184),
    ("deepseek-v3", 91_991, 688_574_839_360, 684_489_845_504),
    ("qwen3-235b-a22b", 36_945, 470_187_269_120, 235_093_634_560),
    ("gpt-oss-20b", 459, 13_761_264_768, 20_914_757_184),
    ("gemma-3-1b", 340, 1_999_771_904, 999_885_952),
    ("smollm2-135m", 272, 269_030_016, 134_515_008),
    ("kimi-k2.5", 208_550, 595_148_745_696, 1_026_879_376_368),
    ("qwen3-next-80b-a3b", 74_391, 159_348_782_592, 79_674_391_296),
    ("llama-3.1-8b", 291, 16_060_522_496, 8_030_261_248),
    ("llama-3.1-405b", 1_137, 811_706_777_600, 405_853_388_800),
])  # fmt: skip
def test_shipped_cards(root: Path, name: str, tensors: int, size: int, parameters: int) -> None:
    release = read_card(root / "examples" / "cards" / f"{name}.toml")
    assert (release.tensors.count, release.tensors.total_bytes, release.model.parameters) == (tensors, size, parameters)
    assert not release.has_weights and release.root is None
    assert not [text for text in release.model.unknowns if text.startswith("tensor")]


def test_the_largest_card(root: Path) -> None:
    """Kimi K3 technical report, table 1: 2.78 T parameters, 104.2 B active; 69 linear and 24 latent layers."""
    started = time.monotonic()
    model = read_card(root / "examples" / "cards" / "kimi-k3.toml").model
    assert time.monotonic() - started < 3
    assert model.attention_layers() == {"linear": 69, "latent": 24}
    assert [index for index, layer in enumerate(model.layers) if layer.attention == "latent"][-3:] == [87, 91, 92]
    assert [layer.feed_forward for layer in model.layers] == ["dense"] + ["experts"] * 92
    assert model.parameters_text == 2_779_484_478_208
    assert round(model.parameters_active["no_embedding"] / 1e9, 1) == 104.2
    latent, linear, experts = model.attentions["latent"], model.attentions["linear"], model.feed_forwards["experts"]
    assert (latent.kv_rank, latent.rope_dim, latent.q_rank, latent.head_dim) == (512, 64, 1536, 192)
    assert (linear.heads, linear.head_dim, linear.v_head_dim, linear.conv_kernel) == (96, 128, 128, 4)
    assert (experts.experts, experts.top_k, experts.width, experts.input_width, experts.shared_width) == (
        896, 16, 3072, 3584, 6144)  # fmt: skip
    assert model.sources["index_base"].startswith("1")
    assert model.sources["head_dim"] == "config.json: text_config.qk_nope_head_dim"


def test_multi_token_prediction_is_told_apart(root: Path) -> None:
    """DeepSeek-V3: 671.03 B without the 13.46 B of the prediction layer (arXiv 2412.19437 says 671 B)."""
    model = read_card(root / "examples" / "cards" / "deepseek-v3.toml").model
    mtp = sum(family.parameters for family in model.families if family.role.startswith("mtp."))
    assert (model.mtp_layers, model.parameters - mtp) == (1, 671_026_419_200)


def test_without_blocks_the_standard_ones(card: Path) -> None:
    card.write_text(SMALL)
    names = set(read_card(card).tensors.names())
    assert "model.layers.1.mlp.down_proj.weight" in names and "lm_head.weight" in names
    card.write_text(SMALL + "tie_word_embeddings = true\n")
    assert "lm_head.weight" not in set(read_card(card).tensors.names())


def test_a_later_row_replaces_an_earlier_one_in_its_layers(card: Path) -> None:
    card.write_text(SMALL + '[[blocks]]\nuse = "standard"\n[[tensors]]\nname = "model.layers.{L}.mlp.up_proj.weight"\n'
                    'layers = [1]\nshape = ["intermediate_size", 64]\ndtype = "F32"\n')
    groups = {(group.shape, group.dtype): list(group.layer.values) for group in read_card(card).tensors.groups
              if group.pattern.endswith("up_proj.weight")}  # fmt: skip
    assert groups == {((128, 64), "BF16"): [0], ((128, 64), "F32"): [1]}


def test_layers_behind_the_last_are_stated_or_named_one_by_one(card: Path) -> None:
    row = '[[tensors]]\nname = "model.layers.{L}.self_attn.q_proj.weight"\nlayers = "0-2"\nshape = [64, 64]\n'
    card.write_text(SMALL + row)
    with pytest.raises(CardError, match="layers 0-2 end behind the last, the model has 2"):
        read_card(card)
    for text in (SMALL + row.replace("0-2", "0-1+2"), SMALL + "num_nextn_predict_layers = 1\n" + row):
        card.write_text(text)
        assert read_card(card).model.mtp_layers == 1


def test_a_tower_has_layers_of_its_own(card: Path) -> None:
    card.write_text(SMALL + '[[tensors]]\nname = "vision_tower.blocks.{L}.fc1.weight"\nlayers = "0-26"\n'
                    'shape = [8, 8]\n')
    assert read_card(card).tensors.count > 27


@pytest.mark.parametrize(("text", "message", "hint"), [
    ("[card\n", "not TOML", "correct"),
    ("[config]\nhidden_size = 1\n", "card", "examples"),
    (SMALL.replace("name", "nam"), "nam", 'did you mean "name"'),
    (SMALL + '[[block]]\nuse = "standard"\n', "block", 'did you mean "blocks"'),
    (SMALL + '[[blocks]]\nuse = "experst"\n', "experst", 'did you mean "experts"'),
    (SMALL + '[[blocks]]\nuse = "experts"\nlayers = "all"\n', "expert_width", "state it"),
    (SMALL + '[[blocks]]\nuse = "standard"\nwithout = ["normz"]\n', "normz", 'did you mean "norms"'),
    (SMALL + '[[blocks]]\nuse = "gated_mlp"\nformat = "fp4"\n', "fp4", "known"),
    (SMALL + '[[blocks]]\nuse = "gated_mlp"\nlayers = "fool"\n', "fool", "use all"),
    (SMALL + '[[tensors]]\nname = "a.weight"\nshape = ["hidden_siz"]\n', "hidden_siz", 'did you mean "hidden_size"'),
    (SMALL + '[[tensors]]\nname = "a.weight"\nshape = ["64 ** 2"]\n', "64 ** 2", "integers"),
    (SMALL + '[[tensors]]\nname = "a.weight"\nshape = ["1 // 0"]\n', "division by zero", "check"),
    (SMALL + '[[tensors]]\nname = "a.weight"\nshape = [-1]\n', "makes no sense", "check"),
    (SMALL + '[[tensors]]\nname = "a.weight"\nshape = [1]\ndtype = "BF61"\n', "BF61", 'did you mean "BF16"'),
    (SMALL + '[[tensors]]\nname = "a.{L}.weight"\nshape = [1]\n', "no layers", "{L}"),
    (SMALL + '[[tensors]]\nname = "a.weight"\nshape = [1]\nexperts = 5\n', "5 experts", "{E}"),
    (SMALL + '[[tensors]]\nname = "a.{E}.weight"\nshape = [1]\nexperts = 5\n', "expert", "experts.{E}"),
    (SMALL + '[[tensors]]\nname = "experts.{E}.w"\nshape = [1]\nexperts = 30000000\n', "more than", "experts"),
    (SMALL + '[[tensors]]\nname = "a.weight"\nshape = [1]\ndtype = "bf16"\n',
     "[[tensors]] a.weight: unknown dtype 'bf16'", 'did you mean "BF16"? known: '),
    (SMALL + '[[blocks]]\nuse = "gated_mlp"\nlayers = "0-999"\n', "layers 0-999 end behind the last", "from 0"),
    (SMALL + '[[tensors]]\nname = "model.norm.weight"\nshape = [4]\n',
     "[[tensors]] model.norm.weight: its shape is [4], that of the block [64]", "without"),
    (SMALL + '[[tensors]]\nname = "model.layers.{L}.mlp.up_proj.weight"\nlayers = [1]\nshape = [256, 64]\n',
     "its shape is [256, 64], that of the block [128, 64]", "without"),
    (SMALL.replace("= 2", "= 1000000000"), "num_hidden_layers is 1000000000", "correct the config"),
    (SMALL.replace("= 64", "= 10000000000000000"), "hidden_size", "correct"),
    (SMALL.replace("vocab_size = 100\n", ""), "vocab_size", "add it"),
    (SMALL.replace("= 64", '= "64"'), "hidden_size", "correct"),
])  # fmt: skip
def test_a_wrong_card_says_what_is_wrong(card: Path, text: str, message: str, hint: str) -> None:
    card.write_text(text)
    with pytest.raises(CardError) as error:
        read_card(card)
    assert message in error.value.message and card.name in error.value.message
    assert hint in error.value.hint and "download" not in error.value.hint
    assert "\n" not in error.value.message + error.value.hint


def test_a_card_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CardError, match="cannot read"):
        read_card(tmp_path / "none.toml")


def test_bytes_that_are_not_text(card: Path) -> None:
    card.write_bytes(b"\xff\xfe[card]")
    with pytest.raises(CardError):
        read_card(card)


@pytest.mark.parametrize("line", ["x = " + "[" * 5000 + "]" * 5000, "x = " + "9" * 5000, "x = 0x" + "f" * 5000])
def test_values_that_nobody_can_write_down(card: Path, line: str) -> None:
    card.write_text(SMALL + line)
    with pytest.raises(CardError, match="is not TOML"):
        read_card(card)
