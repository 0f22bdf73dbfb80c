"""Whether an outer plan is a right answer for an outer-sync document; shares no code with the planner.

The stated times are checked to repeat: if every period can look like the stated one, then no period needs to
be longer. The bound over all plans is derived anew from its statement.
"""

from collections.abc import Iterator

from pace.documents.base import refuse_other
from pace_sync.documents.outer_plan import OuterFragment, OuterPlan
from pace_sync.documents.outer_sync import OuterSync
from pace_sync.errors import InvalidSync

TOLERANCE = 1e-9


def check_outer(problem: OuterSync, plan: OuterPlan) -> list[str]:
    """Return every way in which a plan is not a right answer for a problem; empty if it is one.

    A plan may have a lower utilization than the best: how far from it, its bound says.
    """
    refuse_other(problem, OuterSync, InvalidSync)
    refuse_other(plan, OuterPlan, InvalidSync)
    violations = [*_check_identity(problem, plan), *_check_content(problem, plan)]
    if violations:
        return violations
    slack = TOLERANCE * (plan.predicted.period_s + problem.busy_s)
    return [
        *_check_times(problem, plan, slack),
        *_check_predictions(problem, plan),
        *_check_bound(problem, plan),
    ]


def _check_identity(problem: OuterSync, plan: OuterPlan) -> Iterator[str]:
    if plan.problem_sha256 != problem.sha256:
        yield "problem_sha256 is that of another outer-sync document: plan again, or give that document"
    if plan.period_steps != problem.period_steps:
        yield f"period_steps is {plan.period_steps}, the document has {problem.period_steps}"


def _check_content(problem: OuterSync, plan: OuterPlan) -> Iterator[str]:
    sizes = {layer.name: layer.size_bytes for layer in problem.layers}
    links = {link.name for link in problem.links}
    sent = dict.fromkeys(sizes, 0)
    if problem.max_fragments is not None and len(plan.fragments) > problem.max_fragments:
        yield f"{len(plan.fragments)} fragments, max_fragments is {problem.max_fragments}"
    for number, fragment in enumerate(plan.fragments):
        if fragment.link not in links:
            yield f'fragment {number}: there is no link "{fragment.link}"'
        if fragment.delay_steps > problem.max_delay_steps:
            yield (
                f"fragment {number}: delay_steps is {fragment.delay_steps}, "
                f"max_delay_steps is {problem.max_delay_steps}"
            )
        for part in fragment.parts:
            if part.layer not in sizes:
                yield f'fragment {number}: there is no layer "{part.layer}"'
                continue
            sent[part.layer] += part.size_bytes
            if problem.cutting != "anywhere" and part.size_bytes != sizes[part.layer]:
                yield f'fragment {number}: layer "{part.layer}" is cut, cutting is "{problem.cutting}"'
        if problem.cutting == "none" and len(fragment.parts) > 1:
            yield f'fragment {number} has {len(fragment.parts)} layers, cutting is "none"'
    for name, size in sizes.items():
        if sent[name] != size:
            yield f'layer "{name}": {sent[name]} of {size} bytes are sent'


def _check_times(problem: OuterSync, plan: OuterPlan, slack: float) -> Iterator[str]:
    steps, period = problem.period_steps, plan.predicted.period_s
    waits = [0.0] * steps
    for wait in plan.waits:
        waits[wait.step] += wait.wait_s
    reached, left, now = [], [], 0.0
    for wait_s in waits:
        reached.append(now)
        left.append(now + wait_s)
        now += wait_s + problem.busy_step_s
    if abs(now - period) > slack:
        yield f"predicted.period_s is {period!r}, steps and waits take {now!r}"
    of_link: dict[str, list[tuple[int, OuterFragment]]] = {}
    for number, fragment in enumerate(plan.fragments):
        took = _transfer_s(problem, fragment)
        if abs(fragment.end_s - fragment.start_s - took) > slack:
            yield f"fragment {number}: its transfer takes {took!r} s, end_s - start_s is not that"
        if fragment.start_s < reached[fragment.send_step] - slack:
            yield (
                f"fragment {number}: start_s is {fragment.start_s!r}, "
                f"it is sent at {reached[fragment.send_step]!r}"
            )
        turns, due = divmod(fragment.send_step + fragment.delay_steps, steps)
        if fragment.end_s > turns * period + left[due] + slack:
            yield (
                f"fragment {number}: end_s is {fragment.end_s!r}, "
                f"it is applied at {turns * period + left[due]!r}"
            )
        of_link.setdefault(fragment.link, []).append((number, fragment))
    for link, fragments in of_link.items():
        following = [*fragments[1:], fragments[0]]
        for place, ((_, before), (number, after)) in enumerate(zip(fragments, following, strict=True)):
            again = period if place == len(fragments) - 1 else 0.0
            if after.start_s + again < before.end_s - slack:
                yield (
                    f'fragment {number}: start_s is {after.start_s!r}, link "{link}" is busy '
                    f"until {before.end_s - again!r}"
                )


def _check_predictions(problem: OuterSync, plan: OuterPlan) -> Iterator[str]:
    predicted, bound = plan.predicted, plan.bound
    for field, stated, derived in (
        ("predicted.utilization", predicted.utilization, problem.compute_s / predicted.period_s),
        ("predicted.gap", predicted.gap, max(predicted.period_s / bound.period_s - 1, 0.0)),
        ("bound.utilization", bound.utilization, problem.compute_s / bound.period_s),
    ):
        if abs(stated - derived) > TOLERANCE * (1 + derived):
            yield f"{field} is {stated!r}, derived {derived!r}"
    rules = [rival.rule for rival in plan.rivals]
    if len(set(rules)) < len(rules):
        yield "rivals: a rule is there twice"
    for rival in plan.rivals:
        within = problem.max_fragments is None or rival.num_fragments <= problem.max_fragments
        if within and rival.utilization > bound.utilization + TOLERANCE:
            yield f'rival "{rival.rule}": utilization {rival.utilization!r} is above the bound'
        if rival.num_fragments < 1 or rival.delay_steps > problem.max_delay_steps:
            yield (
                f'rival "{rival.rule}": {rival.num_fragments} fragments that are applied after '
                f"{rival.delay_steps} steps are not possible"
            )
    under_way = [0] * problem.period_steps
    for fragment in plan.fragments:
        for step in range(fragment.send_step, fragment.send_step + fragment.delay_steps + 1):
            under_way[step % problem.period_steps] += 1
    if predicted.most_under_way != max(under_way):
        yield f"predicted.most_under_way is {predicted.most_under_way}, derived {max(under_way)}"


def _check_bound(problem: OuterSync, plan: OuterPlan) -> Iterator[str]:
    """In a shorter period than the bound, the links must be too slow (``docs``: Streaming DiLoCo)."""
    stated = plan.bound.period_s
    shorter = stated * (1 - TOLERANCE)
    if shorter <= problem.busy_s:
        return
    whole = 0.0
    if problem.cutting != "anywhere":
        costs = [(problem.call_s(link), problem.seconds_per_byte(link)) for link in problem.links]
        least = [min(call + each.size_bytes * byte for call, byte in costs) for each in problem.layers]
        waits = [max(each - problem.max_delay_steps * problem.busy_step_s, 0.0) for each in least]
        whole = problem.busy_s + max(waits)
        if problem.cutting == "none":  # each layer is a fragment, of one of the links
            shares = sum(least), problem.busy_s * len(problem.links) + sum(waits)
            whole = max(whole, max(shares) / len(problem.links))
    most = len(problem.layers) if problem.cutting != "anywhere" else problem.size_bytes
    if problem.max_fragments is not None:
        most = min(most, problem.max_fragments)
    carried = 0.0
    for link in problem.links:
        best = 0.0
        # More fragments than steps have no more room, and cost more calls.
        for count in range(1, min(most, problem.period_steps) + 1):
            window = count * problem.max_delay_steps * problem.busy_step_s
            room = min(shorter, shorter - problem.busy_s + window) - count * problem.call_s(link)
            best = max(best, room / problem.seconds_per_byte(link))
        carried += best
    if carried >= problem.size_bytes and shorter > whole:
        yield (
            f"bound.period_s is {stated!r}, but links can carry {carried:.0f} bytes "
            f"in {shorter!r} s, and the layers have {problem.size_bytes}"
        )


def _transfer_s(problem: OuterSync, fragment: OuterFragment) -> float:
    link = next(each for each in problem.links if each.name == fragment.link)
    return problem.call_s(link) + fragment.size_bytes * problem.seconds_per_byte(link)
