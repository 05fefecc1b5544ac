"""The shipped devices: complete, sourced, and of a sensible size."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import msgspec
import pytest

from dayzero.data import device, devices
from dayzero.errors import TargetError
from dayzero.schema import Device, Link

NAMES = [one.name for one in devices()]


def raw(name: str) -> dict[str, object]:
    return tomllib.loads(files("dayzero.data").joinpath("devices", f"{name}.toml").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_the_file_says_nothing_that_is_not_read(name: str) -> None:
    content = raw(name)
    assert content["name"] == name
    assert set(content) <= {field.name for field in msgspec.structs.fields(Device)}
    known = {field.name for field in msgspec.structs.fields(Link)}
    needed = {"name", "devices", "bandwidth", "latency", "source"}
    assert all(needed <= set(link) <= known for link in content["links"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source(name: str) -> None:
    one = device(name)
    stated = {"memory_bytes", "memory_bandwidth", "flops"} | ({"fp8"} if one.fp8 else set())
    stated |= {"efficiency"} if one.efficiency else set()
    assert stated <= set(one.sources)
    assert all(one.sources.values())
    assert all("bandwidth:" in link.source and "latency:" in link.source for link in one.links)


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_in_the_right_unit(name: str) -> None:
    one = device(name)
    assert 24e9 <= one.memory_bytes <= 1e12
    assert 7e11 <= one.memory_bandwidth <= 2e13
    assert 7e13 <= one.rate("bf16") <= 1e16
    assert one.fp8 in (None, "e4m3fn", "e4m3fnuz")
    assert ("fp8" in one.flops) == (one.fp8 is not None)
    assert one.links[0].devices == 0 or one.links[0].devices >= 8  # 0: all of the machine, over its bus
    assert all(1e10 <= link.bandwidth <= 1e12 and 0 < link.latency < 1e-3 for link in one.links)


def test_figures_against_the_datasheets() -> None:
    # nvidia-smi: 143771MiB; NVIDIA H200 datasheet: 4.8TB/s, 989 TFLOPS BF16 and 1979 FP8 without sparsity, NVLink
    # 900GB/s both ways
    h200 = device("h200")
    assert (h200.memory_bytes, h200.memory_bandwidth) == (143_771 * 2**20, 4.8e12)
    assert (h200.rate("bf16"), h200.rate("fp8"), h200.links[0].bandwidth) == (989e12, 1979e12, 450e9)
    # no 4-bit units: 4-bit weights compute in bf16
    assert h200.rate("mxfp4") == 989e12
    # AMD Instinct MI300X data sheet: 1307.4 TFLOPS, 2614.9 FP8; its FP8 is the FNUZ dialect, that of MI355X is OCP's
    assert device("mi300x").rate("fp8") == 2614.9e12
    assert (device("mi300x").fp8, device("mi355x").fp8) == ("e4m3fnuz", "e4m3fn")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(TargetError, match="no device is named 'h2000'") as caught:
        device("h2000")
    assert caught.value.hint.startswith('did you mean "h200"? known: a100, ')
    assert "local" in caught.value.hint
    for hostile in ("../engines/any", "", "h200.toml", "/etc/passwd"):
        with pytest.raises(TargetError):
            device(hostile)
