"""target.toml: every default filled in, every mistake told in two lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.topologies import measured

from dayzero.data.topologies import file_topology
from dayzero.errors import DayzeroError, LayoutError, StoreError, TargetError
from dayzero.resolve import links_identity, local_target, read_engine, resolve_target
from dayzero.schema import Device, Layout, Target

HOST = Device(name="host", vendor="", arch="x86_64", memory_bytes=8 * 10**9, memory_bandwidth=1e10, flops={"f32": 1e11})
H200 = '[cluster]\ndevice = "h200"\n'
CHIP = '[cluster]\n[cluster.device]\nmemory_bytes = 1000\nmemory_bandwidth = 1e12\nflops = {bf16 = 1e14}\n'


@pytest.fixture
def resolve(tmp_path: Path):
    def run(text: str, **options: object) -> Target:
        path = tmp_path / "target.toml"
        path.write_text(text)
        return resolve_target(path, **options)

    return run


def test_examples_resolve(root: Path) -> None:
    examples = sorted((root / "examples" / "targets").glob("*.toml"))
    assert len(examples) >= 6
    for path in examples:
        target = resolve_target(path, measured=lambda ranks: HOST)
        assert target.name == path.stem
        if target.cluster.nodes > 1:
            assert target.cluster.network is not None


def test_defaults(resolve) -> None:
    target = resolve(H200)
    assert (target.cluster.world_size, target.cluster.memory_utilization, target.cluster.network) == (1, 0.9, None)
    assert target.cluster.usable_bytes == int(143_771 * 2**20 * 0.9)
    assert (target.engine.name, target.layouts, target.partial) == ("any", (), False)
    assert target.workload.source == "default (docs/numbers.md)"
    assert resolve(H200 + "[workload]\nconcurrency = 3\n").workload.concurrency == 3


def test_layouts(resolve) -> None:
    eight = H200 + "devices_per_node = 8\n"
    assert resolve(eight + "[layout]\ntp = 8\n").layouts == (Layout(tp=8),)
    several = resolve(eight + "[[layout]]\ntp = 4\n[[layout]]\ntp = 8\nep = 8\n").layouts
    assert several == (Layout(tp=4), Layout(tp=8, ep=8))
    for wrong in ("tp = 3", "tp = 16", "tp = 0", "pp = -1", "tp = 8\nep = 3", "tp = 8\nattention_tp = 3"):
        with pytest.raises(LayoutError):
            resolve(f"{eight}[layout]\n{wrong}\n")
    with pytest.raises(LayoutError, match="twice"):
        resolve(eight + "[[layout]]\ntp = 8\n[[layout]]\ntp = 8\n")


def test_an_inline_device(resolve) -> None:
    device = resolve(CHIP + 'fp8 = "e4m3"\nsource = "a brochure"\n').cluster.device
    assert (device.name, device.fp8, device.memory_bytes) == ("custom", "e4m3fn", 1000)
    assert set(device.sources.values()) == {"a brochure"}


def test_this_machine_is_measured_for_its_ranks(resolve) -> None:
    asked: list[int] = []

    def measured(ranks: int) -> Device:
        asked.append(ranks)
        return HOST

    target = resolve('[cluster]\ndevice = "local"\ndevices_per_node = 3\n', measured=measured)
    assert (asked, target.cluster.device) == ([3], HOST)
    with pytest.raises(TargetError, match="measured"):
        resolve('[cluster]\ndevice = "local"\n')
    with pytest.raises(TargetError, match="one machine"):
        resolve('[cluster]\ndevice = "local"\nnodes = 2\n', measured=measured)


def test_a_target_for_layouts_on_this_machine(tmp_path: Path) -> None:
    path = local_target([Layout(tp=3), Layout(pp=2)], tmp_path / "runs")
    assert resolve_target(path, measured=lambda ranks: HOST).cluster.devices_per_node == 3
    assert resolve_target(local_target([], tmp_path), measured=lambda ranks: HOST).cluster.devices_per_node == 1


@pytest.mark.parametrize(("text", "message", "hint"), [
    ("[cluster\n", "is not TOML", "examples/targets"),
    ("\xff", "is not TOML", ""),
    (f"x = {'[' * 5000}{']' * 5000}\n", "is not TOML", ""),
    (f"{H200}nodes = {'9' * 5000}\n", "is not TOML", ""),
    (f"{H200}nodes = {'9' * 400}\n", "nodes is not a sensible number", "give"),
    (f"{H200}nodes = 0x{'f' * 5000}\n", "nodes is not a sensible number", "give"),
    (f"{H200}[engine.limits]\nexperts = {'9' * 30}\n", "limits.experts is not a sensible number", "give"),
    (f"{H200}[layout]\ntp = {'9' * 400}\n", "layout.tp is not a sensible number", "give"),
    (f"{H200}[engine.config_defaults]\nx = {{y = [0x{'f' * 30}]}}\n", "config_defaults.x.y is not a sensible", "give"),
    ("[workload]\nconcurrency = 1\n", "has no [cluster]", "devices_per_node"),
    ("[clutser]\ndevice = 'h200'\n", "unknown key 'clutser'", 'did you mean "cluster"?'),
    (H200 + "devices_per_nod = 2\n", "unknown key 'devices_per_nod' in [cluster]", 'did you mean "devices_per_node"?'),
    (H200 + "concurrency = 2\n", "unknown key 'concurrency' in [cluster]", "belongs in [workload]"),
    (H200 + "[[layout]]\ntpp = 2\n", "unknown key 'tpp' in [layout]", 'did you mean "tp"?'),
    (H200 + "[workload]\nkinds = 'serve'\n", "unknown key 'kinds' in [workload]", 'did you mean "kind"?'),
    (CHIP + "arc = 'x'\n", "unknown key 'arc' in [cluster.device]", 'did you mean "arch"?'),
    (CHIP + "[[cluster.device.links]]\nbandwith = 1.0\n", "in [cluster.device.links]", "bandwidth"),
    ("[cluster]\n", "missing required field device", ""),
    ("[cluster]\ndevice = 'h20o'\n", "no device is named 'h20o'", 'did you mean "h20"?'),
    (H200 + "nodes = 'two'\n", "cluster.nodes: expected int, got str", ""),
    (H200 + "nodes = true\n", "cluster.nodes: expected int, got bool", ""),
    (H200 + "nodes = 1.5\n", "cluster.nodes: expected int, got float", ""),
    (H200 + "nodes = -1\n", "cluster.nodes = -1", ""),
    (H200 + "nodes = 0\n", "cluster.nodes = 0", "above 0"),
    (H200 + "nodes = 99999999999999999999\n", "is not a sensible number", ""),
    (H200 + "devices_per_node = 1000000\nnodes = 1000000\n", "devices_per_node * nodes = 1000000000000", "at most"),
    (H200 + "memory_utilization = 1.1\n", "memory_utilization = 1.1 is above 1", "share"),
    (H200 + "memory_utilization = 0.0\n", "memory_utilization = 0", "above 0"),
    (H200 + "memory_utilization = nan\n", "memory_utilization = nan", ""),
    (H200 + "[workload]\ninput_tokens = 0\n", "workload.input_tokens = 0", ""),
    (H200 + "[workload]\nkind = 'serv'\n", "workload.kind: invalid enum value 'serv'", ""),
    (H200 + "[workload]\nkind = 'train'\n", "batch of a training step is not stated", "global_batch"),
    (H200 + "[workload]\nkind = 'train'\nglobal_batch = 0\n", "workload.global_batch = 0", "above 0"),
    (H200 + "[engine]\nname = 'vlm'\n", "no engine is named 'vlm'", 'did you mean "vllm"?'),
    (H200 + "[engine]\nvision = 'cut'\n", "engine.vision: invalid enum value 'cut'", ""),
    (CHIP + "fp8 = 'e5m2'\n", "unknown dialect", "e4m3fnuz"),
    (CHIP + "efficiency = 1.5\n", "efficiency = 1.5 is above 1", ""),
    (CHIP.replace("{bf16 = 1e14}", "{}"), "flops is empty", ""),
    (CHIP.replace("1e14", "inf"), "flops.bf16 = inf", ""),
    (CHIP.replace("1000", "0"), "memory_bytes = 0", ""),
])
def test_mistakes(resolve, text: str, message: str, hint: str) -> None:
    with pytest.raises(DayzeroError) as caught:
        resolve(text)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint
    assert caught.value.exit_code == 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path, Path("/dev/zero"), Path("x" * 5000)):
        with pytest.raises(TargetError, match="cannot read the target"):
            resolve_target(path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TargetError, match="is not TOML"):
        resolve_target(binary)


@given(text=st.text(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_any_text_is_a_target_or_a_user_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "any.toml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass" if text.isprintable() else "replace")
    with pytest.raises(DayzeroError):
        resolve_target(path)


def test_waivers(resolve) -> None:
    waiver = '[[waivers]]\nrule = "shard-heads"\nreason = "padded"\n'
    dates = ("expires = 2026-12-31\n", "expires = '2027-01-01'\nsubject = 'a*'\n")
    first, second = resolve(H200 + "".join(waiver + date for date in dates)).waivers
    assert (first.rule, first.subject, first.reason) == ("shard-heads", "*", "padded")
    assert (first.expires.isoformat(), second.expires.isoformat(), second.subject) == ("2026-12-31", "2027-01-01", "a*")
    assert resolve(H200).waivers == ()


@pytest.mark.parametrize(("text", "words"), [
    ('rule = "shard-heads"\nreason = "x"', ["waivers[0]", "expires"]),
    ('rule = "shard-heads"\nexpires = 2026-12-31', ["waivers[0]", "reason"]),
    ('reason = "x"\nexpires = 2026-12-31', ["waivers[0]", "rule"]),
    ('rule = "shard-heads"\nreason = "  "\nexpires = 2026-12-31', ["gives no reason"]),
    ('rule = "shard-heads"\nreason = "x"\nexpires = "soon"', ["waivers[0].expires"]),
    ('rule = "shard-heads"\nreason = "x"\nexpires = 2026-12-31T00:00:00', ["waivers[0].expires", "date"]),
    ('rule = "shard-heads"\nreason = "x"\nexpires = 2026-12-31\nsubjects = "a"', ["subjects", "[waivers]", "subject"]),
])
def test_waivers_that_say_too_little(resolve, text: str, words: list[str]) -> None:
    with pytest.raises(TargetError) as told:
        resolve(f"{H200}[[waivers]]\n{text}\n")
    assert all(word in told.value.message + told.value.hint for word in words), (told.value.message, told.value.hint)


def test_an_engine_of_the_users_own_lies_beside_the_target(tmp_path: Path) -> None:
    own = 'name = "mine"\n[facts]\nblock_padding = true\n[sources]\nblock_padding = "x"\n'
    (tmp_path / "mine.toml").write_text(own)
    path = tmp_path / "target.toml"
    path.write_text('[cluster]\ndevice = "h200"\n[engine]\nname = "./mine.toml"\nversion = "3"\n')
    engine = resolve_target(path).engine
    assert (engine.name, engine.version, engine.block_padding) == ("mine", "3", True)
    assert read_engine(path) == engine
    path.write_text('[cluster]\ndevice = "h200"\n[engine]\nname = "./yours.toml"\n')
    with pytest.raises(TargetError, match=r"yours\.toml is no file"):
        read_engine(path)


def test_serving_workload_and_limits(resolve) -> None:
    plain = resolve(H200)
    assert (plain.workload.arrival_rate, plain.workload.prefix_hit, plain.workload.draft_tokens) == (0.0, 0.0, 0)
    assert (plain.workload.acceptance_length, plain.workload.precisions) == (1.0, ())
    assert (plain.limits.ttft_s, plain.limits.tpot_s, plain.limits.devices) == (None, None, None)
    made = resolve(H200 + """
        [workload]
        input_tokens = 1000
        arrival_rate = 2.5
        prefix_hit = 0.75
        draft_tokens = 3
        acceptance_length = 2.4
        precisions = ["bf16", "fp8"]
        [limits]
        ttft_s = 2
        tpot_s = 0.03
        devices = 16
    """)
    workload = made.workload
    assert (workload.arrival_rate, workload.shared_tokens, workload.computed_tokens) == (2.5, 750, 250)
    assert (workload.draft_tokens, workload.acceptance_length, workload.precisions) == (3, 2.4, ("bf16", "fp8"))
    assert (made.limits.ttft_s, made.limits.tpot_s, made.limits.devices) == (2, 0.03, 16)


@pytest.mark.parametrize(("wrong", "what"), [
    ("[workload]\nprefix_hit = 1.0", "leaves nothing to compute"),
    ("[workload]\nprefix_hit = -0.1", "not a sensible number"),
    ("[workload]\narrival_rate = 0", "arrival_rate = 0"),
    ("[workload]\ndraft_tokens = 3", "without the tokens that a pass gives"),
    ("[workload]\nacceptance_length = 2.0", "gives 1 to 1"),
    ("[workload]\ndraft_tokens = 1\nacceptance_length = 0.5", "gives 1 to 2"),
    ("[workload]\nprecisions = ['fp9']", "unknown precision"),
    ("[limits]\ntpot_s = 0", "tpot_s = 0"),
    ("[limits]\nttft = 1", "unknown key"),
])
def test_serving_workload_mistakes(resolve, wrong: str, what: str) -> None:
    with pytest.raises(TargetError, match=what):
        resolve(H200 + wrong + "\n")


NODES = H200 + 'devices_per_node = 8\nnodes = 2\nnetwork = {name = "infiniband", bandwidth = 5e10, latency = 1e-5}\n'


def test_a_measurement_of_such_a_cluster_is_taken(resolve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not resolve(NODES).cluster.device.links[0].measured
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / "dayzero" / "topologies"
    folder.mkdir(parents=True)
    made = measured()
    before = links_identity(tmp_path / "target.toml")
    file_topology(made, folder)
    found = resolve(NODES).cluster
    assert found.device.links[0].measured and found.network.measured and found.network.bandwidth == 40e9
    assert found.device.host_bandwidth == 5.2e10
    assert links_identity(tmp_path / "target.toml") != before
    nominal = resolve(f'{NODES}topology = "nominal"\n').cluster
    assert not nominal.device.links[0].measured and nominal.network.bandwidth == 5e10
    assert not resolve(NODES.replace("infiniband", "roce")).cluster.network.measured
    (folder / f"{made.name}.topology.json").write_text("{}")
    with pytest.raises(StoreError, match="is no topology"):
        resolve(NODES)


def test_a_topology_that_the_target_names(resolve, tmp_path: Path) -> None:
    place = file_topology(measured(), tmp_path)
    assert resolve(f'{NODES}topology = "{place.name}"\n').cluster.network.measured
    published = resolve(NODES.replace("h200", "h100") + 'topology = "h100-nvswitch-ib400"\n').cluster
    assert published.network.bandwidth == 47e9
    with pytest.raises(TargetError, match="no topology is named"):
        resolve(f'{NODES}topology = "h100-nvswitch"\n')
    with pytest.raises(TargetError, match="of nodes of 8 devices, but devices_per_node = 4"):
        resolve(NODES.replace("node = 8", "node = 4") + f'topology = "{place.name}"\n')


def test_levels_between_nodes(resolve) -> None:
    racks = H200 + ("devices_per_node = 8\nnodes = 8\noverlap = 0.5\n[[cluster.network]]\nname = \"rack\"\n"
                    "devices = 32\nbandwidth = 5e10\nlatency = 1e-5\nshared_by = 2\n"
                    "[[cluster.network]]\nname = \"spine\"\nbandwidth = 2e10\nlatency = 2e-5\n")
    found = resolve(racks).cluster
    assert (found.network.name, found.network.shared_by, [link.name for link in found.beyond]) == ("rack", 2, ["spine"])
    assert [found.link(size).name for size in (8, 16, 32, 64)] == ["nvlink", "rack", "rack", "spine"]
    assert found.overlap == 0.5
    for old, new, message in (("= 32", "= 12", "no whole domains of 8"), ("= 0.5", "= 1.5", "is above 1"),
                              ("shared_by = 2", "shared_by = 0", "shared_by = 0")):
        with pytest.raises(TargetError, match=message):
            resolve(racks.replace(old, new))


def test_uneven_experts(resolve) -> None:
    assert resolve(H200 + "[workload]\nexpert_imbalance = 1.5\n").workload.expert_imbalance == 1.5
    with pytest.raises(TargetError, match="below 1"):
        resolve(H200 + "[workload]\nexpert_imbalance = 0.5\n")


def test_proposed_tokens_are_the_engine_s_own_layers_unless_it_says_otherwise(resolve) -> None:
    drafts = "[workload]\ndraft_tokens = 1\nacceptance_length = 1.8\n"
    assert resolve(H200 + '[engine]\nname = "vllm"\n').engine.facts.speculative == "none"
    assert resolve(H200 + '[engine]\nname = "vllm"\n' + drafts).engine.facts.speculative == "mtp"
    assert resolve(H200 + '[engine]\nname = "vllm"\nspeculative = "none"\n' + drafts).engine.facts.speculative == "none"
