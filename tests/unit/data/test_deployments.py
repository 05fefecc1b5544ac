"""Published deployments: what is found, and what agrees with a statement. Facts: SemiAnalysisAI/InferenceX, configs."""

from dayzero.data.deployments import Deployment, Workers, deployments, nearest


def test_a_published_load_is_found_whatever_the_organisation_and_precision_in_the_name():
    load = 1024, 8192, 2048
    found = deployments("deepseek-ai/DeepSeek-R1", "gb200", "trtllm", load)
    assert found and found == deployments("nvidia/DeepSeek-R1-0528-NVFP4", "gb200", "trtllm", load)
    kept = nearest(found, (4, 4), 32, "fp4", "0.8.1.post2")
    assert Deployment(precision="fp4", version="0.8.1.post2", prefill=Workers(tp=4, ep=4, apart=True, count=1),
                      decode=Workers(tp=32, ep=32, apart=True, count=1), draft_tokens=0, batch=64) in kept


def test_what_is_not_published_is_not_found():
    assert deployments("NewLab-1T", "gb200", "trtllm", (1024, 8192, 2048)) == ()
    assert deployments("deepseek-ai/DeepSeek-R1", "gb200", "trtllm", (1024, 8192, 2049)) == ()
    assert deployments("deepseek-ai/DeepSeek-R1", "no such device", "trtllm", (1024, 8192, 2048)) == ()


def made(tp: int, prefill_tp: int = 8, precision: str = "fp8", version: str = "1.0") -> Deployment:
    return Deployment(precision=precision, version=version, prefill=Workers(tp=prefill_tp, ep=1, apart=False, count=1),
                      decode=Workers(tp=tp, ep=1, apart=False, count=2), draft_tokens=0, batch=None)


def test_the_degree_of_decoding_has_to_agree():
    assert nearest([made(8)], (8, 1), 16) == ()


def test_other_statements_decide_where_any_agrees():
    kept = nearest([made(8), made(8, precision="fp4"), made(8, prefill_tp=4)], (4, 1), 8, "fp8", "2.0")
    assert kept == (made(8, prefill_tp=4),)
    assert nearest([made(8), made(8, version="1.1")], (8, 1), 8, "fp8", "1.1") == (made(8, version="1.1"),)


def test_all_rows_are_deployments_of_a_kind_that_can_be():
    from dayzero.data.deployments import _known

    every = [one for several in _known().values() for one in several]
    assert len(every) > 1000
    for one in every:
        assert min(one.decode.count, one.prefill.count, one.decode.tp, one.prefill.tp) >= 1
        assert one.draft_tokens is None or 0 <= one.draft_tokens <= 7
