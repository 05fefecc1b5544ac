"""Code of releases in its usual habits: what it names, asks and leaves out, and what of it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from tests.support.own_code import CONFIGURATION, MODELING, PARAMETERS, guest

from dayzero.errors import NotPossible
from dayzero.runtime.isolation import Limits
from dayzero.schema import Release
from dayzero.stages.read import read
from dayzero.stages.trace import trace

pytestmark = pytest.mark.slow
LIMITS = Limits(seconds=120, memory=4 << 30)
LOOP = "        for layer in self.model.layers:\n"


def release(folder: Path, tmp_path: Path) -> Release:
    return read(folder, cache=tmp_path / "cache", metadata_only=True)


def test_a_package_that_is_not_installed_and_a_file_without_its_dot(tmp_path) -> None:
    head = "import no_such_package_at_all.images as images\nfrom configuration_guest import GuestConfig as Same\n"
    modeling = head + MODELING + "\nassert Same is GuestConfig\n"
    graph = trace(release(guest(tmp_path / "guest", modeling=modeling), tmp_path), tokens=12, context=5, trust=LIMITS)
    assert graph.parameters == PARAMETERS and set(graph.phases) == {"prefill", "decode"}
    assert any(line.startswith("no_such_package_at_all: not installed") for line in graph.supplied)
    modeling = head + MODELING.replace("        self.post_init()", "        self.post_init(); list(images.make())", 1)
    with pytest.raises(NotPossible, match=r"no_such_package_at_all.images.make.*\(modeling_guest.py:\d+\)"):
        trace(release(guest(tmp_path / "other", modeling=modeling), tmp_path), trust=LIMITS)


def test_code_that_names_devices_asks_for_values_and_was_written_for_version_4(tmp_path) -> None:
    configuration = CONFIGURATION.replace("unread=3", "unread=3, rope_scaling=None").replace(
        "        self.unread", "        self.rope_scaling = rope_scaling\n        self.unread")
    modeling = MODELING.replace("        self.post_init()", """\
        self.rates = [x.item() for x in torch.linspace(0, 1, 4)]
        self.angles = torch.arange(4, device=torch.cuda.current_device())
        assert config.rope_scaling is None and config.max_length == 20 and config.kept_by_nobody == 7
        self.post_init()""", 1).replace(LOOP, f"""\
        assert x.is_cuda and x.device.type == "cuda" and self.model.get_head_mask(None, 2) == [None, None]
        x = x + self.model.angles.cuda().sum() + torch.zeros(1, device="cuda")
{LOOP}""", 1)
    folder = guest(tmp_path / "guest", modeling=modeling, configuration=configuration, kept_by_nobody=7)
    graph = trace(release(folder, tmp_path), tokens=12, context=5, trust=LIMITS)
    assert set(graph.phases) == {"prefill", "decode"} and not graph.missing
    mixed = [call for call in graph.operators if call.kind == "attention" and call.phase == "decode"]
    assert mixed and all(call.inputs[1][2] == 6 for call in mixed)  # keys: those of the cache and of the new token


WHOLE = """

class GuestSeesImages(GuestPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.language_model = GuestForCausalLM(config)
        self.post_init()

    def forward(self, pixel_values, input_ids=None, **kwargs):
        return self.language_model(input_ids, **kwargs)
"""


def test_of_what_needs_images_the_text_part_runs(tmp_path) -> None:
    table = {"AutoConfig": "configuration_guest.GuestConfig", "AutoModel": "modeling_guest.GuestSeesImages"}
    folder = guest(tmp_path / "guest", modeling=MODELING + WHOLE, auto_map=table)
    graph = trace(release(folder, tmp_path), tokens=12, context=5, trust=LIMITS)
    assert "its language_model" in graph.source and set(graph.phases) == {"prefill", "decode"}
    assert any(call.module == "language_model.lm_head" for call in graph.operators)
    plain = trace(release(guest(tmp_path / "plain"), tmp_path), tokens=12, context=5, trust=LIMITS)
    assert {phase.flops for phase in graph.phases.values()} == {phase.flops for phase in plain.phases.values()}


def test_a_mask_is_given_to_a_decode_that_fails_without(tmp_path) -> None:
    modeling = MODELING.replace(LOOP, f"""\
        if cache.get_seq_length() and kwargs.get("attention_mask").shape[1] != cache.get_seq_length() + 1:
            raise ValueError("another length")
{LOOP}""", 1)
    graph = trace(release(guest(tmp_path / "guest", modeling=modeling), tmp_path), tokens=12, context=5, trust=LIMITS)
    assert "given a mask" in graph.source and set(graph.phases) == {"prefill", "decode"}


def test_code_of_another_repository_is_told(tmp_path) -> None:
    table = {"AutoModelForCausalLM": "some-org/base--modeling_base.Base"}
    folder = guest(tmp_path / "guest", auto_map=table)
    with pytest.raises(NotPossible, match=r"another repository's: some-org/base--modeling_base.Base") as caught:
        trace(release(folder, tmp_path), trust=LIMITS)
    assert "repository" in caught.value.hint
