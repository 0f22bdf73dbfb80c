"""The outer step: equal to the bit to a plain program of the algorithm, whatever fragments and delays."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pace.errors import CommunicationFailed, InvalidUse, ScheduleMismatch
from pace_fabric.runtime.commit_log import Vector
from pace_sync.diloco import OuterStep, outer_layers, torchft_arguments
from pace_sync.documents.outer_plan import OuterPlan, parse_outer_plan
from pace_sync.documents.outer_sync import OuterLink, OuterSync
from pace_sync.planning.outer.plan import plan_outer
from tests.pace_sync.diloco.streaming_reference import (
    OuterReference,
    Sent,
    build_model,
    change_narrow,
    flat,
    inner_optimizer,
    inner_step,
    outer_optimizer,
    train_reference,
)

PERIOD, STEPS = 8, 40


class MeanOfThreads:
    """Averages over threads of this process, summing in the order of members."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._lock = threading.Condition()
        self._rounds: dict[tuple[str, int], dict[int, tuple[Vector, float]]] = {}
        self.failed = False

    def of(self, member: int) -> "Member":
        """Return a member's end."""
        return Member(self, member)

    def average(self, key: tuple[str, int], member: int, update: Vector, weight: float) -> Vector:
        """Wait for all members and return the mean."""
        with self._lock:
            given = self._rounds.setdefault(key, {})
            given[member] = update, weight
            self._lock.notify_all()
            if not self._lock.wait_for(lambda: len(given) == self._members, timeout=60):
                self.failed = True
                raise CommunicationFailed(f"members of {key} are missing")
        total = torch.zeros(len(update))
        for each in range(self._members):
            total = total + torch.from_numpy(given[each][0]) * given[each][1]
        mean: Vector = (total / torch.tensor(sum(weight for _, weight in given.values()))).numpy()
        return mean


class Member:
    """One member's end of a ``MeanOfThreads``."""

    def __init__(self, mean: MeanOfThreads, member: int) -> None:
        self._mean, self._member = mean, member
        self._calls: dict[str, int] = {}

    def all_reduce(self, update: Vector, *, members: int, weight: float = 1.0, name: str = "mean") -> Vector:
        """Return the weighted mean of all members."""
        assert members == self._mean._members
        self._calls[name] = self._calls.get(name, 0) + 1
        return self._mean.average((name, self._calls[name]), self._member, update, weight)


def made_plan(**changed: Any) -> OuterPlan:
    """Return a plan of the small model."""
    fields: dict[str, Any] = {
        "name": "small",
        "layers": tuple(outer_layers(build_model())),
        "workers": 3,
        "step_s": 1.0,
        "period_steps": PERIOD,
        "max_delay_steps": 3,
        "links": (OuterLink(name="wan", bytes_per_s=160.0),),
    }
    return plan_outer(OuterSync(**(fields | changed)))


def sent_of(plan: OuterPlan) -> list[Sent]:
    """Return what a plan sends in elements of the flat model, in the reference's own terms."""
    begins, at = {}, 0
    for name, parameter in build_model().named_parameters():
        begins[name] = at
        at += parameter.numel()
    return [
        Sent(
            [
                (
                    begins[part.layer] + part.offset_bytes // 4,
                    begins[part.layer] + (part.offset_bytes + part.size_bytes) // 4,
                )
                for part in fragment.parts
            ],
            fragment.send_step,
            fragment.delay_steps,
        )
        for fragment in plan.fragments
    ]


def train(
    mean: MeanOfThreads,
    member: int,
    plan: OuterPlan | None,
    *,
    mix: float = 0.0,
    weight: float = 1.0,
    saved_after: int = 0,
) -> torch.Tensor:
    """Train one member; return its parameters. If asked, go on in new objects after some step."""
    model = build_model()
    inner = inner_optimizer(model)
    end = mean.of(member)
    step = OuterStep(model, outer_optimizer, end, members=mean._members, plan=plan, mix=mix)
    for number in range(1, STEPS + 1):
        inner_step(model, inner, member, number)
        step.step(weight=weight)
        if number == saved_after:
            state, states = step.state_dict(), (model.state_dict(), inner.state_dict())
            step.close()
            model = build_model(seed=1)
            model.load_state_dict(states[0])
            inner = inner_optimizer(model)
            inner.load_state_dict(states[1])
            step = OuterStep(model, outer_optimizer, end, members=mean._members, plan=plan, mix=mix)
            step.load_state_dict(state)
    step.close()
    return flat(model)


def trained(members: int, plan: OuterPlan | None, weights: list[float], **options: Any) -> list[torch.Tensor]:
    """Train all members in threads, of which none closes while another needs what it has sent."""
    mean = MeanOfThreads(members)
    with ThreadPoolExecutor(members) as threads:
        calls = [
            threads.submit(train, mean, member, plan, weight=weights[member], **options)
            for member in range(members)
        ]
        found = [call.result() for call in calls]
    assert not mean.failed
    return found


PLANS: list[dict[str, Any]] = [
    {},
    {"cutting": "between-layers"},
    {"cutting": "none"},
    {"max_delay_steps": 0},
    {"max_delay_steps": 7, "links": (OuterLink(name="wan", bytes_per_s=1000.0),)},
    {"links": (OuterLink(name="wan", bytes_per_s=100.0), OuterLink(name="lan", bytes_per_s=60.0))},
]


@pytest.mark.parametrize("changed", PLANS)
@pytest.mark.parametrize("mix", [0.0, 0.5])
def test_equal_to_the_plain_algorithm(changed: dict[str, Any], mix: float) -> None:
    """Three members, unequal weights, every kind of plan: each member's parameters, to the bit."""
    plan, weights = made_plan(**changed), [1.0, 2.0, 5.0]
    found = trained(3, plan, weights, mix=mix)
    expected = train_reference(sent_of(plan), workers=3, period=PERIOD, steps=STEPS, mix=mix, weights=weights)
    for mine, plain in zip(found, expected, strict=True):
        assert torch.equal(mine, plain)
    assert not torch.equal(found[0], flat(build_model()))


def test_without_a_plan_every_call_averages() -> None:
    """One fragment, each step, no delay: members stay equal."""
    found = trained(2, None, [1.0, 1.0])
    whole = [Sent([(0, len(found[0]))], 0, 0)]
    expected = train_reference(whole, workers=2, period=1, steps=STEPS, mix=0.0, weights=[1.0, 1.0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mix", [0.0, 0.5])
@pytest.mark.parametrize("saved_after", [0, 13])
def test_the_outer_model_of_narrow_workers_is_that_of_wide_ones(
    dtype: torch.dtype, mix: float, saved_after: int
) -> None:
    """The same changes, once in 16 bits and once in float32, move the outer model alike: none is lost."""
    plan, weights = made_plan(), [1.0, 2.0, 5.0]
    mean = MeanOfThreads(3)

    def train(member: int) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        model, end = build_model().to(dtype), mean.of(member)
        step = OuterStep(model, outer_optimizer, end, members=3, plan=plan, mix=mix)
        changes = []
        for number in range(1, STEPS + 1):
            changes.append(change_narrow(model, member, number))
            step.step(weight=weights[member])
            if number == saved_after:
                state = step.state_dict()
                step.close()
                step = OuterStep(model, outer_optimizer, end, members=3, plan=plan, mix=mix)
                step.load_state_dict(state)
        rows = [each["row"] for each in step.state_dict()["fragments"]]
        step.close()
        return changes, torch.cat(rows), flat(model).float()

    with ThreadPoolExecutor(3) as threads:
        changes, outer, narrow = zip(*threads.map(train, range(3)), strict=True)
    first = flat(build_model().to(dtype)).float()
    reference = OuterReference(first, sent_of(plan), period=PERIOD, mix=mix, weights=weights)
    rows = [first] * 3
    for number in range(STEPS):
        rows = [row + each[number] for row, each in zip(rows, changes, strict=True)]
        rows = reference.after_step(number + 1, rows)
    expected = torch.cat(reference.outer)
    for member in range(3):
        torch.testing.assert_close(outer[member], expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(narrow[member], rows[member], rtol=torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize("saved_after", [1, 13, 16])
def test_a_saved_state_goes_on(saved_after: int) -> None:
    """Saved with fragments under way and loaded into new objects, training ends with the same bits."""
    plan = made_plan()
    assert any(fragment.delay_steps for fragment in plan.fragments)
    straight = trained(2, plan, [1.0, 1.0])
    assert all(
        torch.equal(*pair)
        for pair in zip(straight, trained(2, plan, [1.0, 1.0], saved_after=saved_after), strict=True)
    )


def test_a_lost_member_is_an_error() -> None:
    """What the exchange raises comes out of the step that needs the mean."""

    class Broken:
        def all_reduce(self, update: Vector, *, members: int, weight: float = 1.0, name: str = "") -> Vector:
            raise CommunicationFailed(f"{name}: {members} members, {len(update)} numbers, {weight}")

    plan = made_plan()
    with OuterStep(build_model(), outer_optimizer, Broken(), members=3, plan=plan) as step:
        first = min(fragment.send_step + fragment.delay_steps for fragment in plan.fragments)
        for _ in range(first - 1):
            step.step()
        with pytest.raises(CommunicationFailed, match="3 members"):
            step.step()


def test_finish_applies_what_is_under_way() -> None:
    """Afterwards nothing is, and the parameters are the outer ones."""
    mean = MeanOfThreads(1)
    model, plan = build_model(), made_plan()
    with OuterStep(model, outer_optimizer, mean.of(0), members=1, plan=plan) as step:
        inner = inner_optimizer(model)
        for number in range(1, PERIOD + 4):
            inner_step(model, inner, 0, number)
            step.step()
        before = flat(model)
        step.finish()
        assert not torch.equal(before, flat(model))
        assert all(each["mean"] is None for each in step.state_dict()["fragments"])


def test_other_models_and_exchanges_are_refused() -> None:
    """In one line that names the layer, the parameter or the link."""
    plan = made_plan()
    mean = MeanOfThreads(1).of(0)

    def step(model: nn.Module, given: OuterPlan = plan, exchange: Any = mean, **options: Any) -> None:
        OuterStep(model, outer_optimizer, exchange, members=1, plan=given, **options)

    with pytest.raises(ScheduleMismatch, match=r'layer "0\.weight" has 240 bytes'):
        step(nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 1)))
    with pytest.raises(ScheduleMismatch, match=r'does not have parameter "5\.weight"'):
        step(nn.Sequential(*build_model(), nn.Linear(1, 1)))
    with pytest.raises(ScheduleMismatch, match=r'layer "4\.weight", which is no parameter'):
        step(nn.Sequential(*list(build_model())[:4]))
    with pytest.raises(InvalidUse, match='link "wan" of the plan has no exchange'):
        step(build_model(), exchange={"lan": mean})
    with pytest.raises(InvalidUse, match="mix is 2"):
        step(build_model(), mix=2.0)
    with pytest.raises(InvalidUse, match="the model has no parameters"):
        OuterStep(nn.Tanh(), outer_optimizer, mean, members=1)


def test_modules_are_layers() -> None:
    """A layer of a plan may be a module with all its parameters, in any layout."""
    layers = outer_layers(build_model(), ["0", "2"])
    assert [(each.name, each.size_bytes) for each in layers] == [
        ("0", 280),
        ("2", 308),
        ("4.weight", 28),
        ("4.bias", 4),
    ]
    with pytest.raises(ScheduleMismatch, match='module "9"'):
        outer_layers(build_model(), ["9"])
    plan = made_plan(layers=tuple(layers))
    model = build_model()
    first = model[0]
    assert isinstance(first, nn.Linear)
    first.weight = nn.Parameter(first.weight.detach().t().contiguous().t())
    assert not first.weight.is_contiguous()
    with OuterStep(model, outer_optimizer, MeanOfThreads(1).of(0), members=1, plan=plan) as step:
        before = flat(model)
        with torch.no_grad():
            first.weight.add_(1.0)
        for _ in range(2 * PERIOD):
            step.step()
        step.finish()
        assert np.isfinite(flat(model).numpy()).all()
        assert not torch.equal(flat(model)[:60], before[:60])
        assert torch.equal(flat(model)[60:], before[60:])


def test_torchft_arguments() -> None:
    """A plan in torchft's form becomes its arguments; another one is refused."""
    problem = OuterSync(
        name="small",
        workers=2,
        step_s=1.0,
        period_steps=PERIOD,
        max_delay_steps=3,
        links=(OuterLink(name="wan", bytes_per_s=80.0),),
        layers=tuple(outer_layers(build_model(), ["0", "2", "4"])),
        cutting="between-layers",
    )
    plan = plan_outer(problem, torchft=True)
    found = torchft_arguments(plan)
    assert (found.sync_every, found.fragment_sync_delay) == (PERIOD, 3)
    assert [each for group in found.fragments for each in group] == ["0", "2", "4"]
    assert len(found.fragments) == 2
    changed = json.loads(plan.to_json())
    changed["fragments"][0]["delay_steps"] = 2
    with pytest.raises(ScheduleMismatch, match=r"delays are \[2, 3\]"):
        torchft_arguments(parse_outer_plan(json.dumps(changed)))
    with pytest.raises(ScheduleMismatch, match="plan with --for-torchft"):
        torchft_arguments(made_plan())
