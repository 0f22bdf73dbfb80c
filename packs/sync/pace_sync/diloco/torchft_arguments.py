"""A plan as the arguments of torchft's DiLoCo."""

from dataclasses import dataclass

from pace.errors import ScheduleMismatch
from pace_sync.documents.outer_plan import OuterPlan


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
