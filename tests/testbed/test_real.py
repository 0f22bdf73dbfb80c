"""Models with real compute, in a setting on real hosts."""

import pytest

from benchmarks.harness.contenders import BY_NAME
from benchmarks.harness.contest import Contest, Costs
from benchmarks.harness.layouts import Layout
from benchmarks.harness.measure import Effort, measure
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.workload import real
from benchmarks.harness.workload.real import BATCH_SIZES, RealModel, captured
from pace.documents.collective_costs import AffineAllReduce


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a few examples a batch, and a few iterations, here and in the ranks that are forked.

    With fewer the encoder's gradients are so large that rounding alone exceeds the tolerance.
    """
    monkeypatch.setitem(BATCH_SIZES, "cnn", 4)
    monkeypatch.setitem(BATCH_SIZES, "encoder", 16)
    monkeypatch.setattr(real, "CAPTURED_ITERATIONS", 4)


@pytest.mark.races_with_machine(
    reason="real processes on network namespaces must answer within their time-outs"
)
@pytest.mark.netns
@pytest.mark.slow
def test_a_real_model_is_captured_and_trained_by_every_kind(two_hosts: list[Host]) -> None:
    """DDP and PACE arrive at the reference's weights under a profile captured on the hosts."""
    cost = AffineAllReduce(latency_s=1e-3, seconds_per_byte=1e-7)
    fitted = captured("cnn", two_hosts, cost, ("torch",), pairs=2)
    assert fitted.contention["torch"].compute_slowdown >= 1
    assert fitted.profile.timing.compute_s > 0
    assert len(fitted.profile.gradients) == len(list(RealModel("cnn", rank=0).parameters()))
    result = measure(
        Contest(
            on=two_hosts,
            layout=Layout(2),
            model="cnn",
            ratio=1.0,
            fitted=fitted,
            costs=Costs(allreduce={"torch": cost}),
        ),
        [BY_NAME["ddp"], BY_NAME["pace-static"]],
        Effort(rounds=1, windows=2, warmup=2),
        lambda _: None,
    )
    assert [each.disqualified for each in result.contenders] == [None, None]
