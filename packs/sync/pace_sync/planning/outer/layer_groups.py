"""Groups of whole layers: runs in the model's order, and bins filled with the largest first."""

import heapq


def balanced_runs(sizes: list[int], count: int) -> list[list[int]]:
    """Return at most `count` runs of neighbors with the least largest size, as equal as that allows."""
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if len(_runs(sizes, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    found = _runs(sizes, low)
    # Splitting a run leaves the largest as it is, and brings the number up to what was asked.
    while len(found) < min(count, len(sizes)):
        widest = max((run for run in found if len(run) > 1), key=lambda run: sum(sizes[each] for each in run))
        place = found.index(widest)
        total, part, cut = sum(sizes[each] for each in widest), 0, 0
        while cut < len(widest) - 1 and (not cut or 2 * part < total):
            part += sizes[widest[cut]]
            cut += 1
        found[place : place + 1] = [widest[:cut], widest[cut:]]
    return found


def _runs(sizes: list[int], largest: int) -> list[list[int]]:
    found: list[list[int]] = [[]]
    filled = 0
    for number, size in enumerate(sizes):
        if filled + size > largest:
            found.append([])
            filled = 0
        found[-1].append(number)
        filled += size
    return found


def largest_first(sizes: list[int], count: int) -> list[list[int]]:
    """Return `count` bins: each layer, the largest first, goes to the bin with the least."""
    bins: list[list[int]] = [[] for _ in range(min(count, len(sizes)))]
    heap = [(0, place) for place in range(len(bins))]
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        filled, place = heapq.heappop(heap)
        bins[place].append(number)
        heapq.heappush(heap, (filled + sizes[number], place))
    return [sorted(each) for each in bins]
