"""What ranks send each other, by hand on links of round numbers."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plan_models import dense, device, sparse, target

from dayzero.data.efficiency import efficiency
from dayzero.placement.many import Layouts
from dayzero.schema import Attention, Layout
from dayzero.stages.plan.times.hops import _ends, hops
from dayzero.stages.plan.times.stage import rows, stage
from dayzero.stages.plan.times.terms import Terms, terms
from dayzero.stages.plan.times.timing import pass_seconds
from dayzero.stages.plan.times.traffic import Sending, context_parallel, expert_parallel, logits, tensor_parallel
from dayzero.stages.plan.times.work import decode_step, prefill_step

DENSE, SPARSE = dense(), sparse()
ALL, SPARSE_ALL = stage(DENSE, range(30)), stage(SPARSE, range(8))


def on_(model, layout, on):
    """Nothing is known of calls as a whole."""
    return Sending(model, layout, on.cluster, counted=False)


def seconds(sent):
    """At the stated rates."""
    return float(sent.seconds.total)


def test_tensor_parallel_by_hand():
    on = target(8)
    (sent,) = tensor_parallel(on_(DENSE, Layout(tp=4), on), ALL, decode_step(on, 10))
    # 30 layers, 2 all-reduces of 10 * 576 * 2 bytes; 4 messages each of 10 us, 2 * 3/4 of the buffer at 100 GB/s.
    assert seconds(sent) == pytest.approx(60 * (4 * 1e-5 + 1.5 * 11_520 / 1e11))
    block, alone = tensor_parallel(on_(DENSE, Layout(tp=4, attention_tp=1), on), ALL, decode_step(on, 10))
    assert seconds(block) == pytest.approx(seconds(sent) / 2) and seconds(alone) == 0
    assert seconds(*tensor_parallel(on_(DENSE, Layout(dp=8), on), ALL, decode_step(on, 10))) == 0


def test_groups_with_attention_of_their_own_add_up_their_own_sequences():
    """Of 10 sequences each of the two groups has 5, over 2 ranks; after the block all 4 ranks add up all."""
    on = target(8)
    block, attention = tensor_parallel(on_(DENSE, Layout(tp=4, attention_tp=2), on), ALL, decode_step(on, 10))
    assert seconds(block) == pytest.approx(30 * (4 * 1e-5 + 1.5 * 11_520 / 1e11))
    assert seconds(attention) == pytest.approx(30 * (2 * 1e-5 + 1.0 * 5_760 / 1e11))
    across = tensor_parallel(on_(DENSE, Layout(tp=16, attention_tp=8), target(8, 2)), ALL, decode_step(on, 10))
    assert [bool(np.any(one.calls.far)) for one in across] == [True, False]


def test_a_group_that_lies_across_nodes_takes_the_network():
    on = target(8, 3)
    three, four = (next(tensor_parallel(on_(DENSE, Layout(tp=tp), on), stage(DENSE, range(1)), decode_step(on, 1)))
                   for tp in (3, 4))
    assert seconds(three) == pytest.approx(2 * (2 * np.log2(3) * 2e-5 + 4 / 3 * 1152 / 2e10)) and three.calls.far
    assert seconds(four) == pytest.approx(2 * (4 * 1e-5 + 3 / 2 * 1152 / 1e11)) and not four.calls.far


def test_experts_spread_over_replicas_are_dispatched():
    on = target(8, 2)
    (across,) = expert_parallel(on_(SPARSE, Layout(dp=16, ep=16), on), SPARSE_ALL, decode_step(on, 16))
    ranks, nodes = 16 * (1 - (15 / 16) ** 4), 2 * (1 - (1 / 2) ** 4)  # that a token's 4 experts lie on
    row = 1024 * 2
    sent = 16 * row * (ranks * 7 / 8 / 1e11 + nodes / 2 / 2e10)
    assert seconds(across) == pytest.approx(16 * (3 * 1e-5 + 2e-5 + sent))
    (shared,) = expert_parallel(on_(SPARSE, Layout(tp=4, dp=4, ep=16), on), SPARSE_ALL, decode_step(on, 16))
    # each tp rank sends a quarter of the replica's tokens
    assert seconds(shared) == pytest.approx(16 * (3 * 1e-5 + 2e-5 + sent / 4))
    uneven = msgspec.structs.replace(decode_step(on, 16), imbalance=2.0)
    (twice,) = expert_parallel(on_(SPARSE, Layout(dp=16, ep=16), on), SPARSE_ALL, uneven)
    assert seconds(twice) - seconds(across) == pytest.approx(16 * sent)
    (inside,) = expert_parallel(on_(SPARSE, Layout(tp=8, dp=2, ep=8), on), SPARSE_ALL, decode_step(on, 16))
    assert inside.times == 0 and seconds(inside) == 0


def test_ranks_that_share_a_sequence_exchange_queries_and_partial_results():
    on = target(8)
    latent = Attention(kind="latent", heads=64, kv_heads=1, head_dim=192, v_head_dim=128, kv_rank=512, rope_dim=64)
    model = msgspec.structs.replace(SPARSE, attentions={"a": latent})
    held = stage(model, range(8))
    (sent,) = context_parallel(on_(model, Layout(tp=8, cp=4), on), held, decode_step(on, 10))
    # 8 heads of a rank to 3 others: queries of 576 and results of 512 values of 2 bytes; of each of the 32 heads of the
    # group the logarithm of its sum in 4 bytes
    assert sent.seconds.sending == pytest.approx(8 * 10 * 3 * (8 * (576 + 512) * 2 + 32 * 4) / 1e11)
    assert sent.seconds.waiting == pytest.approx(3 * 8 * 2 * 1e-5)
    assert (sent.times, sent.calls.doublings) == (3 * 8, 1.0)
    (first,) = context_parallel(on_(model, Layout(tp=8, cp=4), on), held, prefill_step(on))
    assert first.times == seconds(first) == 0  # nothing is cached before
    chunked = prefill_step(target(input_tokens=16384))  # a second chunk meets 8,192 tokens, the first none
    (later,) = context_parallel(on_(model, Layout(tp=8, cp=4), on), held, chunked)
    assert later.seconds.sending == pytest.approx(8 * 8192 * 576 * 2 * 3 / 4 / 1e11)
    (none,) = context_parallel(on_(model, Layout(tp=8), on), held, decode_step(on, 10))
    assert none.times == seconds(none) == 0


def test_logits_are_gathered_where_the_head_is_cut():
    on, step = target(8, 2), decode_step(target(), 10)
    gathered, told = logits(on_(DENSE, Layout(tp=8, pp=2), on), ALL, step, False)
    assert gathered.seconds.sending == pytest.approx(7 / 8 * 10 * 49152 * 4 / 1e11)
    assert told.seconds.sending == 0 and told.times == 1
    _, all_told = logits(on_(DENSE, Layout(tp=8, pp=2), on), ALL, step, True)
    assert all_told.seconds.sending == pytest.approx(10 * 49152 * 4 / 2e10)
    assert all(seconds(one) == 0 for one in logits(on_(DENSE, Layout(dp=8), on), ALL, step, False))
    first = stage(DENSE, range(15))
    assert all(seconds(one) == 0 for one in logits(on_(DENSE, Layout(tp=8, pp=2), on), first, step, False))


def test_collectives_of_a_datasheet_device_take_calls_and_the_share_of_the_link():
    on, known = target(8, 2), efficiency()
    own, step = known.generation("")[0], decode_step(on, 10)
    # inside a node so few bytes go to all others at once; over two nodes a ring that enters each over all 8 cards,
    # 160 GB/s, is held up inside: 100 GB/s
    for tp, far, copies in ((4, 0.0, 3), (16, known.common.far_call, 2 * 15 / 16)):
        made = Terms()
        made.send(next(tensor_parallel(Sending(DENSE, Layout(tp=tp), on.cluster, counted=True), ALL, step)))
        taken = pass_seconds(made, own, known.engine("any")[0], known.common, prefill=False, narrow=0.0)
        calls = (own.reduce_call + np.log2(tp) * own.reduce_step + far) * 1e-6
        assert taken == pytest.approx(60 * (calls + copies * 11_520 / (1e11 * own.link)))


@pytest.mark.parametrize(("layout", "across"), [
    (Layout(pp=3, dp=8), [True, True]),  # devices 6 7 | 8 of the third replica, 15 | 16 17 of the sixth
    (Layout(pp=4, dp=6), [False, False, False]),  # two replicas in a node
    (Layout(tp=3, pp=2, dp=4), [True]),  # ranks 2, 1 of 8 and so on: a stage lies across an edge
    (Layout(tp=4, pp=6), [False, True, False, True, False]),
    (Layout(tp=8, pp=3), [True, True]), (Layout(tp=12, pp=2), [True]),
])
def test_a_stage_is_followed_across_the_network_if_it_is_in_any_replica(layout, across):
    on, layouts = target(8, 3), Layouts.of([layout])
    edges = np.linspace(0, 30, layout.pp + 1).astype(int)
    # six layers here and five there make each stage a kind of its own
    split = tuple(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    held = rows(DENSE, layouts, lambda model, pp: split)
    found, step = hops(on.cluster, layouts, held), decode_step(on, 1)
    sent = found.all.bytes(DENSE, layouts, step)
    assert sent == pytest.approx(1152 / layout.tp)
    latency = [2e-5 if one else 1e-5 for one in across]
    pace = [1 / 2e10 if one else 1 / 1e11 for one in across]
    assert found.all.latency == pytest.approx(sum(latency)) and found.all.pace == pytest.approx(sum(pace))
    for kind in held.kind:
        behind = [latency[stage_] for stage_ in range(layout.pp - 1) if held.pipelines[layout.pp][stage_] == kind]
        assert found.worst.latency[kind] == max(behind, default=0.0)


def test_what_is_sent_is_part_of_a_pass():
    on, common = target(8, 2, on=device()), efficiency().common
    made = terms(DENSE, Layout(tp=3), on, decode_step(on, 10), common)
    assert made.reduces == 60 and made.reduce_steps == pytest.approx(60 * np.log2(3)) and made.far == 60
    assert made.sent > 60 * 4 / 3 * 11_520 / 2e10 and made.latency == pytest.approx(np.log2(3) * 2e-5)


@given(st.integers(1, 16), st.integers(1, 40), st.integers(1, 24), st.data())
def test_a_node_ends_behind_a_stage_of_any_replica(pp, dp, stages, data):
    stage_ = data.draw(st.integers(0, pp - 1))
    assert _ends(pp, dp, stages, stage_) == any((replica * pp + stage_ + 1) % stages == 0
                                               for replica in range(min(dp, stages)))
