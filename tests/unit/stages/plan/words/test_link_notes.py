"""What a plan says of its links, and that measured links and overlap change its times."""

import msgspec
from tests.support.plan_models import dense, device, target

from dayzero.placement.many import Layouts
from dayzero.schema import COLLECTIVES, Layout, Link, Reached
from dayzero.stages.plan.evaluate import evaluate
from dayzero.stages.plan.times.speeds import speeds
from dayzero.stages.plan.words.link_notes import NOMINAL, link_notes
from dayzero.stages.plan.words.notes import notes


def told(on):
    return list(link_notes(on.cluster))


def measured(link: Link, bandwidth: float) -> Link:
    reached = {name: Reached(bandwidth=bandwidth, latency=1e-6) for name in COLLECTIVES}
    return msgspec.structs.replace(link, collectives=reached, source="topology t")


def with_cluster(on, **changes):
    return msgspec.structs.replace(on, cluster=msgspec.structs.replace(on.cluster, **changes))


def faster(on, bandwidth):
    links = tuple(measured(link, bandwidth) for link in on.cluster.device.links)
    return with_cluster(on, device=msgspec.structs.replace(on.cluster.device, links=links))


def test_nominal_links_are_named() -> None:
    on = target(8, 2, on=device())
    (note,) = told(on)
    inside, network = on.cluster.device.links[0].name, on.cluster.network.name
    assert note.startswith(f"{NOMINAL}: bandwidth and latency of {inside} and {network} are stated")
    assert told(target(1, on=device())) == []
    partly = faster(on, 1e11)
    assert told(partly)[0].startswith(f"{NOMINAL}: bandwidth and latency of {network} are") and told(partly)[1:] == [
        "links: topology t"]
    whole = with_cluster(partly, network=measured(on.cluster.network, 1e10), overlap=0.25)
    assert told(whole) == ["links: topology t",
                           "up to 25% of the sending is hidden behind computing, as the target states"]


def test_a_measured_machine_has_nothing_to_say() -> None:
    assert told(target(2)) == [] or not target(2).cluster.device.measured


def test_a_plan_carries_the_warning() -> None:
    on = target(8, on=device())
    for cluster, warned in ((on, True), (faster(on, 1e9), False)):
        said = notes(dense(), cluster, speeds(on, dense()), None)
        assert any(note.startswith(NOMINAL) for note in said) == warned


def first_token(on) -> float:
    return float(evaluate(dense(), on, Layouts.of([Layout(tp=2, dp=4)])).ttft_s[0])


def test_times_take_measured_links_and_what_is_hidden() -> None:
    on = target(8, on=device())
    slow, fast = faster(on, 1e8), faster(on, 1e12)
    assert first_token(slow) > 1.5 * first_token(fast)
    half = first_token(with_cluster(slow, overlap=0.5))
    assert first_token(fast) < half < first_token(slow)
    known = [first_token(with_cluster(each, device=msgspec.structs.replace(each.cluster.device, efficiency=0.5)))
             for each in (slow, with_cluster(slow, overlap=0.5), fast)]
    assert known[0] > known[1] > known[2]
