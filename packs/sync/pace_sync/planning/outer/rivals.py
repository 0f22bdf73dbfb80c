"""Rules of other libraries: torchft's DiLoCo, and the fragments of the streaming DiLoCo paper.

torchft (pytorch/torchft, torchft/local_sgd.py, class DiLoCo) synchronizes fragment i of P, which are modules,
every H / P steps in turn: it is sent `fragment_sync_delay` steps before its turn ends and applied at the end.
P divides H, the delay is less than H / P, and all fragments go over one process group.

The paper (Douillard et al., Streaming DiLoCo with overlapping communication, arXiv 2501.18512, sections 2.2,
2.3 and 3.3) puts three layers into a fragment, strided over the depth of the model, and spaces fragments
evenly over the period. Each is applied after tau steps.
"""

from pace_sync.documents.outer_sync import OuterSync
from pace_sync.planning.outer.lowering import FragmentSend, balanced_runs, steady_state_of, streaming_links

LAYERS_TOGETHER = 3


def torchft_fragments(problem: OuterSync, count: int, delay: int) -> list[FragmentSend]:
    """Return what torchft sends with so many fragments, over the link that is best for it.

    Layers are divided as equally as their order allows.
    """
    sizes = [layer.size_bytes for layer in problem.layers]
    turn = problem.period_steps // count
    groups = balanced_runs(sizes, count)
    return _over_best_link(
        problem,
        [
            (group, ((place + 1) * turn - delay) % problem.period_steps, delay)
            for place, group in enumerate(groups)
        ],
    )


def best_of_torchft(problem: OuterSync) -> list[FragmentSend]:
    """Return what torchft sends with the number of fragments and the delay that are best for it.

    A longer delay within the limit is never slower, so the longest is taken for each number.
    """
    steps = problem.period_steps
    best: tuple[float, list[FragmentSend]] | None = None
    most = min(steps, len(problem.layers), problem.max_fragments or steps)
    for count in range(1, most + 1):
        if steps % count:
            continue
        delay = min(problem.max_delay_steps, steps // count - 1)
        fragments = torchft_fragments(problem, count, delay)
        period = steady_state_of(problem, fragments).period_s
        if best is None or period < best[0] * (1 - 1e-9):
            best = period, fragments
    assert best is not None, "one fragment divides every period"
    return best[1]


def strided_fragments(problem: OuterSync) -> list[FragmentSend]:
    """Return what the streaming DiLoCo paper sends, with the delay at its limit."""
    layers = len(problem.layers)
    count = max(-(-layers // LAYERS_TOGETHER), 1)
    steps = problem.period_steps
    return _over_best_link(
        problem,
        [
            (list(range(place, layers, count)), (place + 1) * steps // count % steps, problem.max_delay_steps)
            for place in range(count)
        ],
    )


def _over_best_link(problem: OuterSync, sends: list[tuple[list[int], int, int]]) -> list[FragmentSend]:
    """Return fragments over the link with the shortest period; rivals have one."""
    sizes = [layer.size_bytes for layer in problem.layers]
    found = []
    for link in range(len(streaming_links(problem).call_s)):
        fragments = [
            FragmentSend(
                parts=tuple((layer, 0, sizes[layer]) for layer in group),
                link=link,
                send_step=step,
                delay_steps=delay,
            )
            for group, step, delay in sends
        ]
        found.append(sorted(fragments, key=lambda each: each.send_step))
    if len(found) == 1:
        return found[0]
    return min(found, key=lambda fragments: steady_state_of(problem, fragments).period_s)
