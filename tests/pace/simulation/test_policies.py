"""What the policies put on the network, against the systems themselves, transcriptions, examples."""

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace import Gradient, InvalidOptions, Op, Options, Profile, optimize, parse_schedule
from pace.documents.collective_costs import AffineAllReduce, AllReduce
from pace.models import build
from pace.planning.fusion.problem import FusionProblem
from pace.simulation import POLICIES, knobs_of, make_policy, run_policy
from pace.simulation.grouped import GroupedSender
from pace.simulation.horovod import fuse_responses
from pace.simulation.scheduled import sender_of
from pace.solver import one_machine
from pace.solver.one_machine import Instance
from tests.strategies import eighths, profiles, properties

MODELS = {"vgg16": 64, "resnet50": 32, "inception-v3": 32, "seq2seq": 4096, "transformer": 2048}


def modeled(name: str, workers: int = 8) -> Profile:
    """Return a computed profile."""
    return build(name, device_tflops=8.0, batch=MODELS[name], workers=workers)


def chain_of(sizes: list[int], *, dtypes: list[Any] | None = None, cost: AllReduce | None = None) -> Profile:
    """Return a profile whose gradients become ready in the order given, 1 s apart."""
    names = [f"g{number}" for number in range(len(sizes))]
    kinds = dtypes or ["int8"] * len(sizes)
    return Profile(
        name="chain",
        workers=2,
        ops=(
            *(Op(name=f"bwd/{name}", duration_s=1.0, stream="compute") for name in names),
            *(
                Op(name=f"fwd/{name}", duration_s=1.0, stream="compute", waits_for=(name,))
                for name in names[::-1]
            ),
        ),
        gradients=tuple(
            Gradient(name=name, size_bytes=size, dtype=kind, producer=f"bwd/{name}")
            for name, size, kind in zip(names, sizes, kinds, strict=True)
        ),
        allreduce=cost or AffineAllReduce(latency_s=0.5, seconds_per_byte=0.125),
    )


def groups_of(name: str, profile: Profile, **knobs: Any) -> tuple[tuple[int, ...], ...]:
    """Return a policy's groups in the order in which they go out."""
    sender = make_policy(name, **knobs).prepare(profile)
    assert isinstance(sender, GroupedSender)
    return sender.groups


# Conservation

IN_TWO_HALVES = ("dear", "zero-1", "zero-redundancy", "sharded")


@properties(30)
@given(profile=profiles())
def test_every_byte_is_sent_once(profile: Profile) -> None:
    """Every gradient with bytes is carried, by transfers that carry as many bytes as its group has."""
    for name in POLICIES:
        assert_every_byte_is_sent_once(name, profile)


def assert_every_byte_is_sent_once(name: str, profile: Profile) -> None:
    """Check one policy."""
    window = run_policy(profile, make_policy(name)).windows[0]
    traffic = window.traffic
    total = sum(gradient.size_bytes for gradient in profile.gradients)
    halves = 2 if name in IN_TWO_HALVES else 1
    padded = name == "sharded"  # to whole rows, one for each rank
    sent = int(traffic.size_bytes.sum())
    assert halves * total <= sent
    assert padded or sent == halves * total
    together: dict[tuple[int, ...], int] = {}
    for gradient, carriers in zip(profile.gradients, traffic.carriers, strict=True):
        assert bool(len(carriers)) == (gradient.size_bytes > 0)
        key = tuple(carriers.tolist())
        together[key] = together.get(key, 0) + gradient.size_bytes
    for key, size in together.items():
        carried = int(traffic.size_bytes[list(key)].sum())
        assert size <= carried if padded else size == carried


@properties(30)
@given(profile=profiles())
def test_no_policy_beats_the_bound(profile: Profile) -> None:
    """The bound against every fusion and every order holds for every policy that pays g for a call.

    DeAR pays half of g twice, each half of the latency too, and starts the forward pass in between: it plays
    another game.
    """
    bound = optimize(profile).predicted.lower_bound_s
    for name in POLICIES:
        if name != "dear":
            assert run_policy(profile, make_policy(name)).iteration_s >= bound * (1 - 1e-9), name


@properties(40)
@given(profile=profiles(), name=st.sampled_from(["pace", "paper"]))
def test_a_schedules_document_is_sent_as_the_policy_sends(profile: Profile, name: Any) -> None:
    """The policy skips the document; a schedule read back from one sends the same segments."""
    schedule = optimize(profile, Options(fusion="paper" if name == "paper" else "optimal"))
    sender = sender_of(profile, parse_schedule(schedule.to_json()))
    ours = run_policy(profile, make_policy(name)).windows[0].traffic
    theirs = sender.traffic(profile.timing.ready_s)
    assert ours.release_s.tolist() == theirs.release_s.tolist()
    assert ours.size_bytes.tolist() == theirs.size_bytes.tolist()
    assert [c.tolist() for c in ours.carriers] == [c.tolist() for c in theirs.carriers]


@properties(40)
@given(profile=profiles())
def test_optimal_takes_what_was_predicted(profile: Profile) -> None:
    """The simulator and the solver price a plan alike; free preemption is never behind the oracle's ideal.

    Unless sampled costs make the parts of a group cheaper than the whole, which is all that it sends.
    """
    schedule = optimize(profile)
    predicted = schedule.predicted
    simulated = run_policy(profile, make_policy("pace")).iteration_s
    assert simulated == pytest.approx(predicted.iteration_s, rel=1e-12, abs=1e-12)
    free = run_policy(profile, make_policy("pace", preemption="free")).iteration_s
    assert predicted.lower_bound_s * (1 - 1e-12) - 1e-12 <= free
    sent_s = [0.0 for _ in schedule.groups]
    for segment in schedule.transfers:
        sent_s[segment.group] += segment.end_s - segment.start_s
    wholes = [group.transfer_s or 0.0 for group in schedule.groups]
    if all(whole_s <= parts_s * (1 + 1e-9) + 1e-9 for whole_s, parts_s in zip(wholes, sent_s, strict=True)):
        assert free <= predicted.ideal_iteration_s * (1 + 1e-12) + 1e-12


@st.composite
def cut_anywhere(draw: st.DrawFn) -> Profile:
    """Draw a profile in which preemption is free: no latency, and a byte takes an eighth as times do."""
    drawn = draw(profiles(cost=st.just(AffineAllReduce(latency_s=0.0, seconds_per_byte=0.125))))
    gradients = tuple(gradient.model_copy(update={"dtype": "int8"}) for gradient in drawn.gradients)
    return drawn.replace(workers=2, gradients=gradients)


@properties(60)
@given(profile=cut_anywhere())
def test_bytes_sent_by_layer_are_the_oracle(profile: Profile) -> None:
    """Segments of one byte, no latency, one at a time: the simulator is Jackson's schedule, exactly."""
    problem = FusionProblem.of(profile)
    oracle = one_machine.solve(
        Instance(ready=problem.ready, processing=problem.cost(problem.sizes), tail=problem.tail)
    )
    by_byte = make_policy("bytescheduler", partition_bytes=1, credit_bytes=0)
    assert run_policy(profile, by_byte).iteration_s == max(oracle.objective, problem.compute_s)


# PyTorch DDP


def torch_buckets(profile: Profile, limits: list[int]) -> list[list[int]]:
    """Return what torch's own function assigns, gradients given in the order in which they become ready."""
    torch = pytest.importorskip("torch")
    dist = pytest.importorskip("torch.distributed")
    order = [int(g) for g in np.argsort(profile.timing.ready_s, kind="stable")]
    tensors = []
    for number in order:
        gradient = profile.gradients[number]
        kind = getattr(torch, gradient.dtype)
        count = gradient.size_bytes // torch.empty(0, dtype=kind).element_size()
        tensors.append(torch.empty(count, dtype=kind, device="meta"))
    assigned, _ = dist._compute_bucket_assignment_by_size(
        tensors, limits, [False] * len(tensors), list(range(len(tensors)))
    )
    return [[order[at] for at in bucket] for bucket in assigned]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("limits", [(1 << 20, 25 << 20), (5_000_000, 5_000_000)])
def test_ddp_buckets_are_torchs_own(name: str, limits: tuple[int, int]) -> None:
    """Byte for byte what torch assigns the same sizes, in the same order."""
    profile = modeled(name)
    ours = groups_of("ddp", profile, first_bytes=limits[0], bucket_bytes=limits[1])
    assert [list(bucket) for bucket in ours] == torch_buckets(profile, list(limits))


@properties(40)
@given(
    drawn=st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from(["float32", "float16"])), min_size=1, max_size=14
    ),
    first=st.integers(1, 60),
    cap=st.integers(1, 90),
)
def test_ddp_buckets_of_two_dtypes_are_torchs_own(drawn: list[tuple[int, str]], first: int, cap: int) -> None:
    """Interleaved dtypes fill buckets of their own; a bucket goes out when it was closed.

    Buckets that never reach their limit come last in an order that torch leaves to a hash table.
    """
    sizes = [count * (4 if kind == "float32" else 2) for count, kind in drawn]
    profile = chain_of(sizes, dtypes=[kind for _, kind in drawn])
    ours = [list(b) for b in groups_of("ddp", profile, first_bytes=first, bucket_bytes=cap)]
    theirs = torch_buckets(profile, [first, cap])
    # A class's bucket is closed if it reached its limit: the first one's, or the others'.
    seen: dict[str, int] = {}
    closed = 0
    for bucket in theirs:
        kind = profile.gradients[bucket[0]].dtype
        limit = cap if seen.get(kind) else first
        seen[kind] = 1
        closed += sum(sizes[g] for g in bucket) >= limit
    assert ours[:closed] == theirs[:closed]
    assert sorted(ours[closed:]) == sorted(theirs[closed:])


# Horovod


def fuse_as_transcribed(sizes: list[int], dtypes: list[int], threshold: int) -> list[list[int]]:
    """Transcribe controller.cc's FuseResponses, deque by deque."""
    responses = deque((number,) for number in range(len(sizes)))
    made: list[list[int]] = []
    while responses:
        response = [responses.popleft()[0]]
        tensor_size = sizes[response[0]]
        skipped_responses: deque[tuple[int]] = deque()
        skipped_size = 0
        while len(responses) > 0:
            new_response = responses[0][0]
            new_tensor_size = sizes[new_response]
            if dtypes[response[0]] == dtypes[new_response] and tensor_size + new_tensor_size <= threshold:
                tensor_size += new_tensor_size
                response.append(new_response)
                responses.popleft()
            else:
                skipped_size += new_tensor_size
                if tensor_size + skipped_size <= threshold:
                    skipped_responses.append(responses.popleft())
                else:
                    break
        while len(skipped_responses) > 0:
            responses.appendleft(skipped_responses.pop())
        made.append(response)
    return made


@properties(120)
@given(
    drawn=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 1)), max_size=12),
    threshold=st.integers(0, 80),
)
def test_fused_responses_are_horovods(drawn: list[tuple[int, int]], threshold: int) -> None:
    """The same groups as a transcription of the C++."""
    sizes, dtypes = [size for size, _ in drawn], [dtype for _, dtype in drawn]
    ours = fuse_responses(deque(range(len(sizes))), sizes, dtypes, threshold)
    assert [list(group) for group in ours] == fuse_as_transcribed(sizes, dtypes, threshold)


def test_look_ahead_worked_by_hand() -> None:
    """Another dtype is skipped, what follows is not.

    Threshold 10. 4 takes 3 (7); 2 of another dtype is skipped (7 + 2 <= 10); then 3 (10); 1 would make
    11, and 10 + 2 + 1 > 10 ends the look. The skipped one goes back to the head, takes nothing of the other
    dtype but skips it (2 + 1 <= 10). An oversized 50 goes alone.
    """
    fused = fuse_responses(deque(range(6)), [4, 3, 2, 3, 1, 50], [0, 0, 1, 0, 0, 0], 10)
    assert fused == [(0, 1, 3), (2,), (4,), (5,)]


def test_horovods_cycles_worked_by_hand() -> None:
    """Ready at 1, 2, 3, 4 s, a cycle every 2.5 s: cycles at 2.5 (two) and 5 (two); 0.5 + bytes / 8 each."""
    window = run_policy(chain_of([8, 8, 16, 4]), make_policy("horovod", cycle_s=2.5)).windows[0]
    assert window.traffic.size_bytes.tolist() == [16, 20]
    assert window.starts_s.tolist() == [2.5, 5.0]
    assert window.ends_s.tolist() == [5.0, 8.0]
    assert window.iteration_s == 8.0 + 4.0


def test_a_blocked_coordinator_does_not_go_back_in_time() -> None:
    """All-reduces of 4.5 s block the loop; what became ready meanwhile goes out together when it ends."""
    policy = make_policy("horovod", cycle_s=0.5, blocking=True)
    window = run_policy(chain_of([32, 8, 8, 8]), policy).windows[0]
    assert window.traffic.size_bytes.tolist() == [32, 24]
    assert window.starts_s.tolist() == [1.0, 5.5]
    # The next is ready before the loop is free, and the loop stays where it is.
    late = run_policy(chain_of([8, 80]), make_policy("horovod", cycle_s=3.0, blocking=True)).windows[0]
    assert late.traffic.release_s.tolist() == [3.0]


# MG-WFBP, partitions, DeAR


def mg_wfbp_as_published(profile: Profile) -> list[list[int]]:
    """Transcribe HKBU-HPML/MG-WFBP: layers 0..L-1 in forward order, merged from the last one."""
    count = len(profile.gradients)
    layers = np.argsort(profile.timing.ready_s, kind="stable")[::-1]
    ready = profile.timing.ready_s[layers]
    latency = profile.cost.durations_s[0]
    sizes = [profile.gradients[int(layer)].size_bytes for layer in layers]
    merged = [[layer] for layer in range(count)]

    def finish_times() -> list[float]:
        ends = [0.0] * count
        started = [0.0] * count
        for layer in range(count - 1, -1, -1):
            free = ends[layer + 1] if layer + 1 < count else 0.0
            started[layer] = max(free, ready[layer])
            duration = float(profile.cost(sizes[layer])) if sizes[layer] else 0.0
            ends[layer] = started[layer] + duration
        return started + ends

    for layer in range(count - 1, 0, -1):
        times = finish_times()
        start, end = times[layer], times[count + layer]
        following = ready[layer - 1]
        if following < end and (start > following or following - start < latency):
            sizes[layer - 1] += sizes[layer]
            sizes[layer] = 0
            merged[layer - 1] = merged[layer] + merged[layer - 1]
            merged[layer] = []
    return [[int(layers[layer]) for layer in group] for group in reversed(merged) if group]


@properties(60)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=10),
    latency=eighths(3),
    slope=st.sampled_from([0.0, 0.03125, 0.125]),
)
def test_merged_gradients_are_mg_wfbps(sizes: list[int], latency: float, slope: float) -> None:
    """The same groups as a transcription of the authors' loop over layers."""
    profile = chain_of(sizes, cost=AffineAllReduce(latency_s=latency, seconds_per_byte=slope))
    ours = [list(group) for group in groups_of("mg-wfbp", profile)]
    assert ours == mg_wfbp_as_published(profile)


def test_partitions_are_even_and_whole_elements() -> None:
    """10 float32 in pieces of at most 14 bytes: three elements each, one left."""
    sender = make_policy("bytescheduler", partition_bytes=14).prepare(chain_of([40], dtypes=["float32"]))
    assert isinstance(sender, GroupedSender)
    assert sender.segment_bytes.tolist() == [12, 12, 12, 4]


def test_both_admission_rules() -> None:
    """Credit 10, segments of 6. Algorithm 1 lets one fly, the code two: the second is admitted on 4 left."""
    code, paper = (
        run_policy(
            chain_of([6, 24]),
            make_policy("bytescheduler", partition_bytes=6, credit_bytes=10, admission=admission),
        ).windows[0]
        for admission in ("code", "paper")
    )
    # g0 is ready at 1 s, g1 at 2 s, and g1 is needed first; a segment takes 1.25 s.
    assert code.starts_s.tolist() == paper.starts_s.tolist() == [1.0, 2.25, 3.5, 4.75, 6.0]
    late = [
        run_policy(
            chain_of([24, 6]),
            make_policy("bytescheduler", partition_bytes=6, credit_bytes=10, admission=admission),
        ).windows[0]
        for admission in ("code", "paper")
    ]
    # At 2 s the second of g0's four flies; the code has handed over the next one as well at 1 s.
    assert [window.starts_s[4] for window in late] == [3.5, 2.25]


def test_dear_gathers_behind_its_last_reduce_scatter() -> None:
    """Two groups of 8 bytes: halves of 0.75 s; reduce-scatters at 1 and 2 s, then the gathers."""
    window = run_policy(chain_of([8, 8]), make_policy("dear", group_bytes=8)).windows[0]
    arrival = dict(zip("01", window.arrival_s.tolist(), strict=True))
    assert sorted(window.starts_s.tolist()) == [1.0, 2.0, 2.75, 3.5]
    assert arrival == {"0": 4.25, "1": 3.5}
    assert window.iteration_s == 5.5


# Wrong names and values


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("lifo", {}, 'no policy "lifo": choose one of fifo, horovod'),
        ("ddp", {"credit_bytes": 1}, 'policy "ddp" has no knob "credit_bytes": it has first_bytes'),
        (
            "p3",
            {"partition_bytes": 0},
            'policy "p3": partition_bytes: expected a number of at least 1 (got 0)',
        ),
        (
            "horovod",
            {"cycle_s": -1.0},
            'policy "horovod": cycle_s: expected a number of at least 0 (got -1.0)',
        ),
        ("horovod", {"cycle_s": float("nan")}, "(got nan)"),
        ("ddp", {"bucket_bytes": "25MB"}, "bucket_bytes: expected a whole number (got '25MB')"),
        ("bytescheduler", {"admission": "both"}, "(got 'both')"),
        ("pace", {"fusion": "none"}, 'policy "pace" has no knob "fusion"'),
    ],
)
def test_what_does_not_exist_is_named(name: str, knobs: dict[str, Any], message: str) -> None:
    """One line that says what there is."""
    with pytest.raises(InvalidOptions) as raised:
        make_policy(name, **knobs)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", POLICIES)
def test_knobs_are_those_that_can_be_set(name: str) -> None:
    """Each listed knob is taken with the value that it has anyway."""
    policy = make_policy(name)
    for knob in knobs_of(name):
        assert make_policy(name, **{knob: getattr(policy, knob)}) == policy
