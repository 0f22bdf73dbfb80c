"""Warnings about measured all-reduce costs: few samples, samples of one rank, sizes outside the samples."""

from collections.abc import Iterator

from pace.documents.collective_costs import AllReduce, SampledAllReduce
from pace.documents.profile import Profile

FEWEST_SIZES = 3
# Up to this factor beyond the samples, the slope between them is trusted.
FARTHEST = 2.0
MOST_SPREAD = 0.5


def cost_warnings(allreduce: AllReduce) -> Iterator[str]:
    """Yield a sentence for each warning about a cost itself; none for a formula."""
    if not isinstance(allreduce, SampledAllReduce):
        return
    sizes = len({size for size, _ in allreduce.samples})
    if sizes < FEWEST_SIZES:
        what = "1 size was" if sizes == 1 else f"{sizes} sizes were"
        yield f"the cost has few samples: {what} measured, and all-reduces of other sizes are an assumption"
    if allreduce.ranks == 1:
        yield "the cost is from one rank's calls, which contain waits for late ranks: use every rank's calls"
    spread = [
        deviation / seconds
        for deviation, (_, seconds) in zip(allreduce.deviations_s, allreduce.samples, strict=False)
        if seconds > 0
    ]
    if spread and max(spread) > MOST_SPREAD:
        yield (
            "all-reduces of one size took different times (standard deviation up to "
            f"{max(spread):.0%} of the assumed cost). Record more steps on idle machines"
        )


def profile_warnings(profile: Profile) -> Iterator[str]:
    """Yield the warnings about a profile's cost, and one if its gradients need sizes outside the samples."""
    yield from cost_warnings(profile.allreduce)
    if not isinstance(profile.allreduce, SampledAllReduce) or not profile.gradients:
        return
    sizes = [size for size, _ in profile.allreduce.samples]
    total = sum(gradient.size_bytes for gradient in profile.gradients)
    if total > FARTHEST * max(sizes):
        yield (
            f"the largest sample is of {max(sizes):,.0f} bytes: larger all-reduces, up to the {total:,} "
            "bytes of all gradients, are extrapolated"
        )
    if total < min(sizes) / FARTHEST:
        yield (
            f"the smallest sample is of {min(sizes):,.0f} bytes, but all gradients together have {total:,}: "
            "their all-reduces are extrapolated"
        )
