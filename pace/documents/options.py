"""What a caller may ask of the optimizer; shared by the Python API, the command line and the service."""

from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Document
from pace.documents.cluster import Cluster
from pace.documents.schedule import Exchange, Framework, Fusion, LpSolver, Oracle, SendDiscipline
from pace.errors import InvalidOptions

Risk = Literal["mean", "p95"]


class Options(Document):
    """Options of ``optimize``.

    Attributes
    ----------
    oracle
        "jackson" (longest tail first, exact in continuous and in slotted time) or "lp" (the totally
        unimodular linear program; needs `slot_s`). Both give the same schedule.
    lp_solver
        With oracle "lp": "scipy" (SciPy's HiGHS), "pulp" (CBC through PuLP) or "pulp:NAME" (the solver that
        PuLP knows by this name, if it is installed).
    fusion
        "optimal", "paper" (Algorithm 1 of the PACE paper) or "none".
    exchange
        How gradients become updates: "allreduce" (whole all-reduces), "sharded" (reduce-scatters, updates of
        shards, all-gathers) or "servers" (pushes to parameter servers, pulls from them). None: "servers"
        where the profile's cost or `cluster` is one of parameter servers, "sharded" where its updates wait
        for a global norm, else "allreduce".
    framework
        "ddp" or "horovod": buckets or groups for that framework, behind its barrier. None: our runtime.
    slot_s
        Length of a slot in seconds; None for continuous time.
    max_group_bytes
        No group of more than one gradient is larger.
    max_segment_bytes
        No segment is larger.
    scenarios, jitter, risk
        With `scenarios` > 0, plans are compared by their iteration time over so many sampled windows in
        which every op's duration is lognormal, with the profile's standard deviation or, where it has none,
        `jitter` times its duration. `risk` says whether the mean or the 95th percentile counts.
    search_calls
        Budget of the local search on profiles with parallel branches, in oracle calls, so that the result
        does not depend on the machine's speed.
    cluster
        The parameter servers of exchange "servers"; None for those of the profile's cost. A gradient with
        transfer ratios, or with the rows touched, is a group of its own.
    partition_bytes
        With servers: size of the segments; if left out, a number of sent bytes is searched for around delta0.
        The cluster's ``min_partition_bytes`` is taken if that is more.
    memory_bytes
        With a graph: most memory in use at once; None for no limit.
    discipline
        With servers: what the runtime does when the segment that is planned next is late.
    """

    refused_as = InvalidOptions

    oracle: Oracle = "jackson"
    lp_solver: Annotated[LpSolver, Field(exclude_if=lambda solver: solver == "scipy")] = "scipy"
    fusion: Fusion = "optimal"
    exchange: Exchange | None = None
    framework: Framework | None = None
    slot_s: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] | None = None
    max_group_bytes: Annotated[int, Field(gt=0)] | None = None
    max_segment_bytes: Annotated[int, Field(gt=0)] | None = None
    scenarios: Annotated[int, Field(ge=0, le=10_000)] = 0
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    risk: Risk = "mean"
    search_calls: Annotated[int, Field(ge=1, le=10_000_000)] = 2000
    cluster: Cluster | None = None
    partition_bytes: Annotated[int, Field(gt=0)] | None = None
    memory_bytes: Annotated[int, Field(gt=0, lt=2**63)] | None = None
    discipline: SendDiscipline = "overtake"

    def refuse_for_graph(self) -> None:
        """Refuse options that a graph does not have; raises InvalidOptions."""
        if self.exchange not in (None, "graph"):
            raise InvalidOptions(f'a graph has exchange "graph", not "{self.exchange}": leave it out')
        changed = self.model_dump(exclude_defaults=True).keys() - {"exchange", "memory_bytes"}
        if changed:
            raise InvalidOptions(
                f'{", ".join(sorted(changed))}: not an option for a graph, which only has exchange="graph" '
                "and memory_bytes: leave the others out"
            )
