"""Options of published launches, and those that notes state. Facts: SemiAnalysisAI/InferenceX, benchmarks."""

from __future__ import annotations

from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.data import devices
from dayzero.data.allocation import allocations
from dayzero.data.launches import NONE, Options, Point, _file, options, stated

POINT = Point(model="deepseek-ai/DeepSeek-R1", precision="fp8", device="b200", engine="sglang", version="0.5.9",
              load=(1024, 1024), requests=64, tp=8, groups=1)
LLAMA = POINT._replace(model="meta-llama/Llama-3.1-70B", precision="fp4", engine="trtllm", version="", tp=4)


@pytest.mark.parametrize(("point", "found"), [
    (POINT, Options(looks=30)),
    (POINT._replace(requests=8), Options(looks=10)),
    (POINT._replace(tp=4), Options(looks=10)),
    (POINT._replace(model="nvidia/DeepSeek-R1-0528-FP4-V2", precision="fp4"), Options(looks=30)),
    (LLAMA._replace(model="nvidia/Llama-3.1-70B-Instruct-FP4"), Options(holds=20, share=0.9, tokens=16384)),
    (LLAMA, Options(holds=20, share=0.9, tokens=16384)),
    (LLAMA._replace(tp=8), Options(tokens=16384)),
    (POINT._replace(engine="trtllm", version="1.2.0rc6.post2"), Options(holds=40, share=0.8, tokens=8192)),
    (POINT._replace(engine="trtllm", version="1.2.0rc6.post3"), Options(tokens=1, draft=3)),
    (POINT._replace(engine="trtllm", version="1.2.0rc6.post3", groups=8), Options(tokens=1, draft=1, balance=60)),
])
def test_a_published_launch(point: Point, found: Options) -> None:
    assert options(point) == found


@pytest.mark.parametrize("change", [
    {"model": "NewLab-1T"}, {"model": ""}, {"model": "deepseek-ai/DeepSeek-R1-Distill-Llama-70B"},
    {"model": "DeepSeek-V3.2"}, {"device": "gb200"}, {"engine": "vllm"}, {"load": (1024, 1000)}, {"requests": 4096.0},
])
def test_what_is_not_published_is_as_the_engine_has_it(change: dict[str, str]) -> None:
    assert options(POINT._replace(**change)) == NONE


def test_what_notes_state_counts_instead() -> None:
    assert options(POINT, "id=x_c64_cfg7; scheduler_recv_interval=1; moe_tp=8") == Options(looks=1)
    assert stated("max-num-batched-tokens=2048 gpu_mem_util=") == Options(tokens=2048)
    assert stated("batch_wait_timeout_iters=20 batch_wait_max_tokens_ratio=0.9") == Options(holds=20, share=0.9)
    assert stated("id=x_tp4; batch_size=16") is None


@given(st.text() | st.from_regex(r"max[_-]num[_-]tokens=[0-9]{0,400}(\.[0-9]*)?"))
def test_any_notes_state_numbers_or_nothing(notes: str) -> None:
    found = stated(notes)
    assert found is None or all(0 < value < 2**40 and isfinite(value) for field in Options.__struct_fields__
                                if (value := getattr(found, field)) is not None)


def test_every_entry_is_about_known_devices_and_engines() -> None:
    known = {device.name for device in devices()}
    for one in _file().launches:
        assert set(one.devices) <= known and one.engine in allocations() and one.source
        assert any(getattr(one, field) is not None for field in Options.__struct_fields__)
    assert set(_file().names) <= set(Options.__struct_fields__)
