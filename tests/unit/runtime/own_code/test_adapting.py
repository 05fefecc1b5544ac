"""Classes written for earlier versions of the library."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")
from dayzero.runtime.own_code.adapting import adapt  # noqa: E402

PACKAGE = "package_of_a_test"
pytestmark = pytest.mark.filterwarnings("ignore:.rope_scaling. is deprecated:FutureWarning")


@pytest.fixture(name="config_class")
def config_class_fixture(monkeypatch: pytest.MonkeyPatch) -> type:
    class Config(transformers.PreTrainedConfig):
        model_type = "of_a_test"

        def __init__(self, rope_theta: float = 10000.0, rope_scaling: dict[str, Any] | None = None, **others: Any):
            self.rope_theta, self.rope_scaling = rope_theta, rope_scaling
            super().__init__(**others)

    module = types.ModuleType(f"{PACKAGE}.configuration")
    Config.__module__ = module.__name__
    module.Config = Config
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Config


def test_without_it_the_library_puts_something_there(config_class) -> None:
    assert config_class().rope_scaling is not None  # when there is nothing, it is of no use any more


def test_scaling_of_positions_is_as_stated(config_class) -> None:
    assert any("rope_scaling" in line for line in adapt(PACKAGE))
    assert config_class().rope_scaling is None
    stated = {"type": "dynamic", "factor": 2.0}
    config = config_class.from_dict({"rope_scaling": stated, "rope_theta": 5.0})
    assert config.rope_scaling == {"type": "dynamic", "factor": 2.0} and config.rope_theta == 5.0
    assert config.rope_parameters["rope_type"] == "dynamic" and config.rope_parameters["rope_theta"] == 5.0


def test_a_model_that_says_in_the_earlier_way_that_it_has_fused_attention(monkeypatch) -> None:
    kinds = {"Says": {"_supports_flash_attn_2": True}, "Not": {"_supports_flash_attn_2": False}, "Neither": {}}
    module = types.ModuleType(f"{PACKAGE}.modeling")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name, values in kinds.items():
        setattr(module, name, type(name, (transformers.PreTrainedModel,), {**values, "__module__": module.__name__}))
    told = adapt(PACKAGE)
    assert module.Says._supports_flash_attn and not module.Not._supports_flash_attn
    assert [line.partition(":")[0] for line in told] == ["Says._supports_flash_attn_2"]
