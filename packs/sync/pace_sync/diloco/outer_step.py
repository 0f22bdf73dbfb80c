"""DiLoCo's outer step: fragments go out, come back averaged, and move an outer optimizer.

A plan can be had as the arguments of torchft's DiLoCo, too.
"""

import hashlib
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from pace.errors import InvalidUse, ScheduleMismatch
from pace.runtime.closing import Closing
from pace_fabric.runtime.commit_log import Vector
from pace_sync.diloco.group_mean import GroupMean
from pace_sync.diloco.outer_row import MakeOuter, OuterRow, whole_model
from pace_sync.diloco.parameter_parts import parts_of_fragments
from pace_sync.documents.outer_plan import OuterPlan


class MeanExchange(Protocol):
    """What averages over workers: a ``FabricClient``, or a ``GroupMean``."""

    def all_reduce(self, update: Vector, *, members: int, weight: float = ..., name: str = ...) -> Vector:
        """Return the weighted mean of all members' updates: the same bytes for all."""


@dataclass(slots=True)
class _Fragment:
    outer: OuterRow
    link: str
    send_step: int
    delay_steps: int
    mean: "Future[Vector] | None" = None
    due: int = 0


class OuterStep(Closing):
    """DiLoCo's outer step, whole or streaming: averaged pseudo-gradients move an outer optimizer.

    Every member has the same outer model, float32, and outer optimizer, and gets the same bytes. A fragment's
    pseudo-gradient is its outer model less the worker's. It is sent by the plan. The mean is applied after
    the fragment's delay, and `step()` waits there if it has not come. The worker's fragment is then the outer
    one, mixed with the worker's own if `mix` is not 0 (arXiv 2501.18512, algorithm 2).

    Parameters
    ----------
    outer
        Makes the outer optimizer of one fragment; SGD with Nesterov momentum in the paper. It must work
        element by element, as SGD and Adam do: a fragment is one row of numbers.
    exchange
        What averages: one for all links, or one for each link of the plan, by its name.
    members
        How many take part in every mean.
    plan
        From ``pace_sync.plan_outer``. Without one, each `step()` sends the whole model and waits.
    mix
        Share of the worker's own parameters in the result, from 0 to 1; alpha in the paper.

    Raises
    ------
    InvalidUse
        For a mix or members that cannot be, or a link without an exchange.
    ScheduleMismatch
        For a plan whose layers are not the model's.

    Attributes
    ----------
    waited_s
        Seconds for which `step()` has waited for means.
    """

    def __init__(
        self,
        model: nn.Module,
        outer: MakeOuter,
        exchange: MeanExchange | Mapping[str, MeanExchange],
        *,
        members: int,
        plan: OuterPlan | None = None,
        mix: float = 0.0,
        name: str = "outer",
    ) -> None:
        if not 0 <= mix <= 1 or members < 1:
            raise InvalidUse(
                f"mix is {mix:g} and members is {members}: a mix from 0 to 1 and at least 1 member are needed"
            )
        self._members, self._mix, self._name = members, mix, name
        self._agreed = False
        self._steps, self._period = 0, 1 if plan is None else plan.period_steps
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._fragments: list[_Fragment] = []
        self.waited_s = 0.0
        if plan is None:
            parts = whole_model(model)
            sends = [(parts, "", 0, 0)]
        else:
            sends = [
                (parts, each.link, each.send_step, each.delay_steps)
                for parts, each in zip(parts_of_fragments(model, plan), plan.fragments, strict=True)
            ]
        for parts, link, send_step, delay in sends:
            self._fragments.append(_Fragment(OuterRow(parts, outer), link, send_step, delay))
        links = {fragment.link for fragment in self._fragments}
        self._exchanges = dict(exchange) if isinstance(exchange, Mapping) else dict.fromkeys(links, exchange)
        if missing := sorted(links - self._exchanges.keys()):
            raise InvalidUse(f'link "{missing[0]}" of the plan has no exchange')

    def step(self, *, weight: float = 1.0) -> None:
        """Send and apply what the plan has after this step; call it after every step of the inner optimizer.

        Parameters
        ----------
        weight
            This member's share in what is sent now, for example the tokens that it has seen.

        Raises
        ------
        ScheduleMismatch
            In the first call, when ranks of a `GroupMean` have different plans or outer models.
        """
        if not self._agreed:
            self._agree()
        self._steps += 1
        for number, fragment in enumerate(self._fragments):
            if self._steps % self._period == fragment.send_step:
                self._send(number, fragment, weight)
        self._apply(self._steps)

    def finish(self) -> None:
        """Wait for and apply all means that are under way, for example before evaluation."""
        self._apply(None)

    def state_dict(self) -> dict[str, Any]:
        """Return the outer models and optimizers; waits for what is under way, and applies nothing early."""
        return {
            "steps": self._steps,
            "fragments": [
                fragment.outer.state_dict()
                | {
                    "mean": None
                    if fragment.mean is None
                    else torch.from_numpy(fragment.mean.result().copy()),
                    "due": fragment.due,
                }
                for fragment in self._fragments
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same plan; load the model's own state beside it.

        Raises
        ------
        ScheduleMismatch
            When its fragments are others.
        """
        sizes = [len(each["row"]) for each in state["fragments"]]
        if sizes != [len(fragment.outer.row) for fragment in self._fragments]:
            raise ScheduleMismatch("the state has other fragments than the plan")
        self._steps, self._agreed = state["steps"], False
        for fragment, saved in zip(self._fragments, state["fragments"], strict=True):
            fragment.outer.load_state_dict(saved)
            fragment.mean, fragment.due = None, saved["due"]
            if saved["mean"] is not None:
                fragment.mean = Future()
                fragment.mean.set_result(saved["mean"].numpy())

    def close(self) -> None:
        """Wait for what was sent, for other members need it, and apply it no more. Idempotent.

        After the first error only what is under way is waited for.
        """
        if self._threads:
            sent = [fragment.mean for fragment in self._fragments if fragment.mean is not None]
            wait(sent, return_when=FIRST_EXCEPTION)
        for threads in self._threads.values():
            threads.shutdown(cancel_futures=True)
        self._threads.clear()

    def _agree(self) -> None:
        plan = [
            (each.link, each.send_step, each.delay_steps, len(each.outer.row)) for each in self._fragments
        ]
        model = hashlib.sha256()
        for fragment in self._fragments:
            model.update(fragment.outer.row.detach().numpy().tobytes())
        exchange = self._exchanges[min(self._exchanges)]
        # Members of a fabric come and go; those of a group begin together.
        if isinstance(exchange, GroupMean):
            facts = {"plan": repr((self._period, self._mix, plan)), "outer model": model.hexdigest()}
            exchange.agree(facts | {"number of steps": str(self._steps)})
        self._agreed = True

    def _send(self, number: int, fragment: _Fragment, weight: float) -> None:
        change = fragment.outer.change()
        exchange = self._exchanges[fragment.link]
        name = self._name if fragment.link == "" else f"{self._name}/{number}"

        def average() -> Vector:
            return exchange.all_reduce(change, members=self._members, weight=weight, name=name)

        fragment.due = self._steps + fragment.delay_steps
        if fragment.link not in self._threads and fragment.delay_steps == 0:
            began = time.monotonic()
            fragment.mean = Future()
            fragment.mean.set_result(average())
            self.waited_s += time.monotonic() - began
            return
        # One thread a link: fragments go over it one after the other, in the plan's order on every member.
        if fragment.link not in self._threads:
            self._threads[fragment.link] = ThreadPoolExecutor(1, thread_name_prefix="pace-outer-step")
        fragment.mean = self._threads[fragment.link].submit(average)

    def _apply(self, due: int | None) -> None:
        """Apply means that are due at a step, or all, in the order in which they are due."""
        under_way = [each for each in self._fragments if each.mean is not None]
        for fragment in sorted(under_way, key=lambda each: each.due):
            if fragment.mean is None or (due is not None and fragment.due > due):
                continue
            began = time.monotonic()
            mean = fragment.mean.result()
            self.waited_s += time.monotonic() - began
            fragment.mean = None
            fragment.outer.move(mean)
            fragment.outer.give(self._mix)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchftArguments:
    """What ``torchft.local_sgd.DiLoCo`` takes.

    Attributes
    ----------
    fragments
        The plan's layers of each fragment, in turn; make a module of each for `model_fragments`.
    """

    fragments: tuple[tuple[str, ...], ...]
    sync_every: int
    fragment_sync_delay: int


def torchft_arguments(plan: OuterPlan) -> TorchftArguments:
    """Return the arguments by which torchft's DiLoCo does what a plan says.

    Raises
    ------
    ScheduleMismatch
        For a plan that torchft cannot follow; make it with ``plan_outer(problem, torchft=True)``.
    """
    steps, count = plan.period_steps, len(plan.fragments)
    hint = "; plan with --for-torchft"
    delays = {fragment.delay_steps for fragment in plan.fragments}
    if len(delays) > 1:
        raise ScheduleMismatch(f"delays are {sorted(delays)}, torchft has one for all fragments{hint}")
    if len({fragment.link for fragment in plan.fragments}) > 1:
        raise ScheduleMismatch(f"the plan has several links, torchft has one process group{hint}")
    (delay,) = delays
    turns = sorted(
        plan.fragments, key=lambda each: (each.send_step + each.delay_steps - 1) % steps
    )  # by when they are applied; boundary 0 is the end of the last turn
    ends = [(fragment.send_step + delay - 1) % steps + 1 for fragment in turns]
    if steps % count or ends != list(range(steps // count, steps + 1, steps // count)):
        raise ScheduleMismatch(
            f"fragments are applied after steps {ends}, torchft needs equal intervals{hint}"
        )
    if delay >= steps // count:
        raise ScheduleMismatch(f"a delay of {delay} steps is not less than the interval of fragments{hint}")
    seen: set[str] = set()
    for fragment in turns:
        for part in fragment.parts:
            if part.layer in seen:
                raise ScheduleMismatch(f'layer "{part.layer}" is cut, torchft takes whole modules{hint}')
            seen.add(part.layer)
    return TorchftArguments(
        fragments=tuple(tuple(part.layer for part in fragment.parts) for fragment in turns),
        sync_every=steps,
        fragment_sync_delay=delay,
    )
