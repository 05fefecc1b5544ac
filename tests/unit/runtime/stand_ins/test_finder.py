"""Imports of libraries that are not installed, in a process of its own: installing changes it for good."""

import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from dayzero.data.stand_ins import stand_ins
from dayzero.runtime.stand_ins.finder import absent

pytestmark = [pytest.mark.skipif("fla" not in absent(stand_ins()), reason="the real library is installed"),
              pytest.mark.slow]


def run(code: str, folder: Path, **files: str) -> str:
    """What a process prints that has installed the stand-ins and can import `files`."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    start = "import sys; from dayzero.runtime import stand_ins; stand_ins.install(); sys.path.insert(0, sys.argv[1])\n"
    done = subprocess.run([sys.executable, "-c", start + textwrap.dedent(code), str(folder)], capture_output=True,
                          text=True, check=False, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_known_names_compute_and_are_counted(tmp_path: Path) -> None:
    shipped = """
        import torch
        from fla.modules import FusedRMSNormGated, ShortConvolution
        from fla.ops.kda import chunk_kda
        from fla.modules.conv.short_conv import ShortConvolution as Same
        import fla.ops.kda.chunk as deep
        from flash_attn.bert_padding import unpad_input
        assert Same is ShortConvolution and deep.chunk_kda is chunk_kda

        def go():
            x = torch.ones(1, 3, 2, 4)
            chunk_kda(x, x, x, -x, x[..., 0])
            ShortConvolution(4, 3)(x[:, :, 0])
            FusedRMSNormGated(4)(x, x)
            unpad_input(x[:, :, 0], torch.ones(1, 3))
    """
    out = run("""
        import shipped
        shipped.go(); shipped.go()
        print([(s.call, s.op, s.times) for s in stand_ins.called()])
        stand_ins.forget()
        print(stand_ins.called())
    """, tmp_path, shipped=shipped)  # fmt: skip
    assert out == ("[('fla.ops.kda:chunk_kda', 'dayzero.delta_rule', 2), "
                   "('fla.modules:ShortConvolution', 'dayzero.convolution', 2), "
                   "('fla.modules:FusedRMSNormGated', 'dayzero.norm', 2), "
                   "('flash_attn.bert_padding:unpad_input', 'torch', 2)]\n()\n")


def test_unknown_names_can_be_imported_and_are_an_error_when_called(tmp_path: Path) -> None:
    shipped = """
        from fla.layers import KimiDeltaAttention as Layer
        from fla.somewhere.new import function, CONSTANT
        import flash_attn.cute.interface as cute

        class Own(Layer):
            def __init__(self):
                self.value = 3

        def annotated(x: CONSTANT | None, y: cute.Thing) -> function[int]:
            return isinstance(x, Layer)

        def go(what):
            return what()
    """
    out = run("""
        import shipped
        print(shipped.annotated(3, 4), shipped.Own().value)
        for what in (shipped.Layer, shipped.function, shipped.cute.run, shipped.cute.Thing.apply):
            try:
                shipped.go(what)
            except stand_ins.MissingStandIn as error:
                print(error.call, error.file, error.line)
    """, tmp_path, shipped=shipped)  # fmt: skip
    assert out.splitlines() == [
        "False 3", "fla.layers:KimiDeltaAttention shipped.py 14", "fla.somewhere.new:function shipped.py 14",
        "flash_attn.cute.interface:run shipped.py 14",
        "flash_attn.cute.interface:Thing.apply shipped.py 14"]  # fmt: skip


def test_a_function_that_moved_is_found_by_its_name_unless_two_have_it(tmp_path: Path) -> None:
    shipped = """
        from fla.modules.elsewhere import ShortConvolution
        from mamba_ssm.ops.elsewhere import selective_scan_fn, RMSNorm
        import fla.modules
        MOVED = (ShortConvolution is fla.modules.ShortConvolution, selective_scan_fn.__name__)

        def go():
            return RMSNorm(8)
    """
    out = run("""
        import shipped
        print(shipped.MOVED)
        try:
            shipped.go()
        except stand_ins.MissingStandIn as error:
            print(error.call)
    """, tmp_path, shipped=shipped)  # fmt: skip
    assert out.splitlines() == ["(True, 'selective_scan_fn')", "mamba_ssm.ops.elsewhere:RMSNorm"]


def test_the_library_of_models_uses_them_where_it_would_use_the_package(tmp_path: Path) -> None:
    out = run("""
        import torch
        from transformers.models.kimi_linear import modeling_kimi_linear as models
        x = torch.ones(1, 3, 2, 4)
        models.chunk_kimi_delta_attention(x, x, x, -x, x[..., 0], output_final_state=True)
        models.causal_conv1d_fn(x[:, :, 0], torch.ones(3, 2), activation="silu")
        print([(s.call, s.op) for s in stand_ins.called()])
    """, tmp_path)
    assert out == ("[('fla.ops.kda:chunk_kda', 'dayzero.delta_rule'), "
                   "('causal_conv1d:causal_conv1d_fn', 'dayzero.convolution')]\n")


def test_an_argument_that_a_stand_in_does_not_have_is_named(tmp_path: Path) -> None:
    shipped = """
        import torch
        from causal_conv1d import causal_conv1d_fn

        def go():
            x = torch.ones(1, 4, 3)
            return causal_conv1d_fn(x, torch.ones(4, 2), seq_idx=torch.zeros(1, 3))
    """
    out = run("""
        import shipped
        try:
            shipped.go()
        except stand_ins.MissingStandIn as error:
            print(error)
    """, tmp_path, shipped=shipped)  # fmt: skip
    assert out == "causal_conv1d:causal_conv1d_fn(seq_idx=...) has no stand-in, used at shipped.py:7\n"


@pytest.mark.skipif(find_spec("triton") is not None, reason="the real package says itself that it finds no device")
def test_kernels_in_a_language_of_their_own_can_be_defined_and_not_run(tmp_path: Path) -> None:
    shipped = """
        import triton
        import triton.language as tl

        @triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4)], key=["n"])
        @triton.jit
        def kernel(x, n: tl.constexpr, BLOCK: tl.constexpr):
            return tl.load(x)

        def go():
            kernel[(triton.cdiv(100, 64),)](None, n=3)
    """
    out = run("""
        import shipped
        try:
            shipped.go()
        except stand_ins.MissingStandIn as error:
            print(error)
    """, tmp_path, shipped=shipped)  # fmt: skip
    assert out == "shipped:kernel (a kernel) has no stand-in, used at shipped.py:11\n"


def test_versions_and_questions_are_answered_to_shipped_code_only(tmp_path: Path) -> None:
    shipped = """
        import importlib.metadata
        import importlib.util
        import inspect
        import flash_attn
        from packaging import version
        from transformers.utils import is_flash_attn_2_available
        if is_flash_attn_2_available():
            from flash_attn import flash_attn_func
            WINDOW = "window_size" in inspect.signature(flash_attn_func).parameters
        FACTS = (flash_attn.__version__, importlib.metadata.version("flash_attn"),
                 importlib.metadata.version("flash-linear-attention"), WINDOW,
                 version.parse(flash_attn.__version__) >= version.parse("2.1.0"),
                 importlib.util.find_spec("mamba_ssm") is not None, importlib.util.find_spec("no_such_thing"))
    """
    out = run("""
        import shipped
        from transformers.utils import import_utils
        exec("from transformers.utils import is_flash_attn_2_available as ask; answer = ask()",
             space := {"__name__": "transformers.models.some"})
        print(shipped.FACTS, space["answer"])
        import numpy, torch, fla
        print(sorted(n for n in vars(fla) if not n.startswith("__"))[:1])
    """, tmp_path, shipped=shipped)  # fmt: skip
    assert out.splitlines()[0] == "('2.6.3', '2.6.3', '0.6.0', True, True, True, None) False"


def test_attention_of_the_library_s_own_table_is_the_stand_in(tmp_path: Path) -> None:
    """Shipped code asks the library for `flash_attention_2` by name."""
    out = run("""
        import torch
        from transformers import AutoModelForCausalLM, CONFIG_MAPPING
        config = CONFIG_MAPPING["llama"](hidden_size=16, intermediate_size=8, num_hidden_layers=1, vocab_size=9,
                                         num_attention_heads=4, num_key_value_heads=2)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        ids = torch.tensor([[1, 2, 3, 4, 5]])
        with torch.inference_mode():
            plain = model(ids).logits
            model.config._attn_implementation = "flash_attention_2"
            other = model(ids, attention_mask=None).logits
        print(torch.allclose(plain, other, atol=1e-5), [s.op for s in stand_ins.called()])
    """, tmp_path)
    assert out == "True ['dayzero.attention']\n"
