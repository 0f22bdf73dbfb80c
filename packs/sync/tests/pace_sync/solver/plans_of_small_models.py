"""Every plan of a few whole layers, by enumeration: the judge of planners on small cases."""

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np

from pace_sync.solver.streaming.steady_state import StreamingSends, steady_state


def groupings(count: int) -> Iterator[list[list[int]]]:
    """Yield every way to group numbers."""
    if not count:
        yield []
        return
    for rest in groupings(count - 1):
        for place in range(len(rest)):
            yield [*rest[:place], [*rest[place], count - 1], *rest[place + 1 :]]
        yield [*rest, [count - 1]]


def best_period(
    sizes: list[float],
    call_s: list[float],
    seconds_per_byte: list[float],
    *,
    step_s: float,
    steps: int,
    delay: int,
    together: bool,
) -> float:
    """Return the least period of all groups, links, send steps and orders; a longer delay is never worse."""
    least = np.inf
    links = range(len(call_s))
    for groups in groupings(len(sizes)) if together else [[[each] for each in range(len(sizes))]]:
        totals = [sum(sizes[each] for each in group) for group in groups]
        for order in permutations(range(len(groups))):
            for chosen in product(links, repeat=len(groups)):
                took = [
                    call_s[link] + totals[each] * seconds_per_byte[link]
                    for each, link in zip(order, chosen, strict=True)
                ]
                for sent in product(range(steps), repeat=len(groups)):
                    if list(sent) != sorted(sent):
                        continue
                    found = steady_state(
                        StreamingSends(
                            transfer_s=np.array(took),
                            link=np.array(chosen),
                            send_step=np.array(sent),
                            delay_steps=np.full(len(groups), delay),
                            step_s=step_s,
                            period_steps=steps,
                        )
                    )
                    least = min(least, found.period_s)
    return float(least)
