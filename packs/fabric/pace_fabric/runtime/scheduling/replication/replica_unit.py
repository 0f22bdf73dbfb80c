"""Updates that the replica applies at once: one, a sum from a relay, or a step that it adds itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pace_fabric.runtime.scheduling.commit_groups import FabricUpdate
from pace_fabric.solver.aggregation import Hop


@dataclass(slots=True, eq=False)
class ReplicaUnit:
    """Updates that the replica applies at once.

    Attributes
    ----------
    scaled
        Whether `key` is a sum of members times factors.
    missing
        How many transfers to the replica have not arrived.
    relayed
        Whether another host adds the members.
    """

    number: int
    members: list[FabricUpdate]
    key: str
    scaled: bool
    missing: int
    relayed: bool
    transfers: list[int] = field(default_factory=list)
    failed: bool = False

    @classmethod
    def of(
        cls, number: int, group: tuple[int, ...], queue: Sequence[FabricUpdate], hops: Sequence[Hop]
    ) -> "ReplicaUnit":
        """Return the unit of a group of places in a queue."""
        members = [queue[place] for place in group]
        relayed = any(hop.after and hop.updates == group for hop in hops)
        summed = len(members) > 1 or relayed
        return cls(
            number=number,
            members=members,
            key=f"p/{number}" if summed else members[0].key,
            scaled=summed,
            missing=1 if relayed else len(members),
            relayed=relayed,
        )


def whole_steps(
    sequence: Sequence[tuple[int, int]], num_received: int | None = None
) -> list[tuple[int, ...]]:
    """Return the steps of which all updates are among the first `num_received`, as places.

    Parameters
    ----------
    sequence
        The number of each update's step, and its place in the step.
    """
    places: dict[int, list[int]] = {}
    for place, (step, _) in enumerate(sequence):
        places.setdefault(step, []).append(place)
    last = len(sequence) if num_received is None else num_received
    return [tuple(each) for each in places.values() if each[-1] < last]
