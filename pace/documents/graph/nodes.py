"""The nodes of a graph: ops on the compute stream, collectives on wires, and waits for them."""

from typing import Annotated, Any, Literal

from pydantic import Field

from pace.documents.base import Bytes, Document
from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce
from pace.documents.profile import DType, Name, Seconds
from pace.errors import InvalidGraph
from pace.solver.cost_curve import CostCurve

CollectiveOp = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all"]


def _is_empty(value: Any) -> bool:
    return not value


class CollectiveCall(Document):
    """What a collective sends.

    Attributes
    ----------
    input_bytes
        This rank's input in bytes, from which the cost of the collective follows.
    output_bytes
        This rank's output in bytes, allocated when the collective is issued.
    dtype
        Null where it is not known. Only collectives of one op, communicator and dtype share a bucket.
    """

    refused_as = InvalidGraph

    op: CollectiveOp
    communicator: Name
    dtype: DType | None = None
    input_bytes: Annotated[int, Field(gt=0, lt=2**63)]
    output_bytes: Bytes


class GraphNode(Document):
    """A node of the program.

    Attributes
    ----------
    duration_s
        Duration of an op on the compute stream, in seconds; 0 for collectives and waits.
    deps
        Names of the earlier nodes that it reads.
    collective
        Call of a collective; null for other nodes.
    waits_for
        Name of the collective whose output a wait returns; null for other nodes. The wait is the only node
        that reads this collective.
    allocates_bytes
        Bytes that an op allocates for its output.
    view_of
        Name of the dependency whose memory an op returns, if it allocates nothing.
    returned
        Whether the program returns its output, so that this memory is not freed.
    """

    refused_as = InvalidGraph

    name: Name
    duration_s: Annotated[Seconds, Field(exclude_if=_is_empty)] = 0.0
    deps: Annotated[tuple[Name, ...], Field(exclude_if=_is_empty)] = ()
    collective: Annotated[CollectiveCall | None, Field(exclude_if=_is_empty)] = None
    waits_for: Annotated[Name | None, Field(exclude_if=_is_empty)] = None
    allocates_bytes: Annotated[Bytes, Field(exclude_if=_is_empty)] = 0
    view_of: Annotated[Name | None, Field(exclude_if=_is_empty)] = None
    returned: Annotated[bool, Field(exclude_if=_is_empty)] = False


class OpCost(Document):
    """What one collective op costs on a communicator, as a function of its input bytes."""

    refused_as = InvalidGraph

    op: CollectiveOp
    cost: Annotated[AffineAllReduce | SampledAllReduce, Field(discriminator="kind")]

    def curve(self, ranks: int) -> CostCurve:
        """Return the duration as a function of input bytes."""
        return self.cost.cost(ranks)


class Communicator(Document):
    """A process group: its size, the wire that it shares with others, and what its collectives cost.

    Attributes
    ----------
    group
        The process group, where several communicators stand for one. Null if the communicator is all of it.
    """

    refused_as = InvalidGraph

    name: Name
    ranks: Annotated[int, Field(ge=1)]
    wire: Name
    costs: tuple[OpCost, ...]
    group: Annotated[Name | None, Field(exclude_if=_is_empty)] = None

    @property
    def process_group(self) -> str:
        """The name of the process group."""
        return self.group or self.name
