"""Building models without weights, and refusing what would need a release's own code."""

from __future__ import annotations

import msgspec
import pytest

from dayzero.errors import NotPossible
from dayzero.schema import TensorTable
from dayzero.stages.trace import trace
from dayzero.stages.trace.construct import architecture


def test_only_the_architecture_is_kept() -> None:
    config = {"model_type": "x", "quantization_config": {"bits": 4}, "auto_map": {"AutoModel": "modeling_x.X"},
              "torch_dtype": "float16", "_attn_implementation": "some-hub/kernel", "experts_implementation": "y",
              "text_config": {"hidden_size": 8, "quantization_config": {}, "attn_implementation": "z"},
              "rope_parameters": {"rope_theta": 1.0}}
    assert architecture(config) == {"model_type": "x", "dtype": "float16", "text_config": {"hidden_size": 8},
                                    "rope_parameters": {"rope_theta": 1.0}}


def test_code_of_a_release_is_not_executed(make, configs, tmp_path) -> None:
    marker = tmp_path / "executed"
    code = f"open({str(marker)!r}, 'w').close()\n"
    for name in ("configuration_new.py", "modeling_new.py"):
        (tmp_path / name).write_text(code)
    config = {**configs["dense"], "model_type": "appears_tomorrow", "architectures": ["AppearsTomorrowForCausalLM"],
              "auto_map": {"AutoConfig": "configuration_new.C", "AutoModelForCausalLM": "modeling_new.M"}}
    with pytest.raises(NotPossible) as caught:
        trace(make(config, files=("modeling_new.py",), root=tmp_path))
    assert "appears_tomorrow" in caught.value.reason and "not executed" in caught.value.reason
    assert caught.value.hint
    # With a class of its own in the library, the library's is used and the release's is still not executed.
    graph = trace(make({**configs["dense"], "auto_map": config["auto_map"]}, root=tmp_path))
    assert "LlamaForCausalLM" in graph.source
    assert not marker.exists()


def test_a_config_that_the_library_refuses_is_not_possible(make, configs) -> None:
    with pytest.raises(NotPossible, match="cannot build made"):
        trace(make({**configs["dense"], "hidden_act": "no_such_activation"}))


def test_a_model_that_does_not_generate_text_is_not_possible(make, configs) -> None:
    with pytest.raises(NotPossible, match="no generating model"):
        trace(make({**configs["dense"], "model_type": "vit"}))


def test_quantisation_is_left_out_and_told(make, configs) -> None:
    plain = trace(make(configs["dense"]))
    quantised = trace(make({**configs["dense"], "quantization_config": {"quant_method": "fp8"}}))
    assert "quantisation left out" in quantised.source and "quantisation" not in plain.source
    assert quantised.operators == plain.operators


def test_parameters_that_differ_from_the_files_are_told(make, configs) -> None:
    declared = trace(make(configs["dense"])).parameters
    assert "the files hold" not in trace(make(configs["dense"], parameters=declared)).source
    other = make(configs["dense"], parameters=2 * declared)
    assert f"{2 * declared:,} are estimated from the config" in trace(other).source
    read = msgspec.structs.replace(other, tensors=TensorTable(files=("a.safetensors",), groups=()))
    assert f"the files hold {2 * declared:,}" in trace(read).source


def test_an_unknown_model_type_is_found_by_its_architecture_if_the_parameters_agree(make, configs) -> None:
    declared = trace(make(configs["dense"])).parameters
    config = {**configs["dense"], "model_type": "appears_tomorrow"}
    assert "chosen by the name" in trace(make(config, parameters=declared)).source
    with pytest.raises(NotPossible, match="estimated from the config"):
        trace(make(config, parameters=2 * declared))


def test_the_dtype_is_the_configs(make, configs) -> None:
    for stated, name in (("float32", "f32"), ("float16", "f16"), ("bfloat16", "bf16")):
        graph = trace(make({**configs["dense"], "dtype": stated}))
        assert {call.dtype for call in graph.operators if call.kind == "linear"} == {name}


def test_parameters_of_the_language_model_alone_are_told() -> None:
    import torch
    from torch import nn

    from dayzero.stages.trace.construct import language_parameters, parameters

    class Seeing(nn.Module):
        def __init__(self, config: object) -> None:
            super().__init__()
            self.config = config
            self.decoder, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 8, bias=False)
            self.tower = nn.Linear(9, 9)
            self.decoder.weight_again = self.decoder.weight

        def get_decoder(self) -> nn.Module:
            return self.decoder

        def get_output_embeddings(self) -> nn.Module:
            return self.head

    class Config:
        def __init__(self, text: object = None) -> None:
            self.text = text

        def get_text_config(self) -> object:
            return self.text or self

    with torch.device("meta"):
        assert language_parameters(Seeing(Config(Config()))) == 16 + 32
        plain = Seeing(Config())
    assert language_parameters(plain) == parameters(plain) == 16 + 32 + 90
    plain.config = Config(Config())
    plain.get_decoder = lambda: plain.no_such_part  # type: ignore[method-assign]
    assert language_parameters(plain) == parameters(plain)
