"""What a caller may ask of the optimizer; shared by the Python API, the command line and the service."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pace.documents.base import Document
from pace.documents.cluster import Cluster
from pace.documents.schedule import Exchange, Framework, Fusion, LpSolver, Oracle, SendDiscipline
from pace.errors import InvalidOptions

Risk = Literal["mean", "p95"]
SearchR = Literal["all", "momentum"]


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
    search_r
        With fusion "paper": which numbers of groups are tried. "all", or those that a search by "momentum"
        visits (at most a quarter of all), which needs fewer calls of the oracle and may miss the best.
    exchange
        How gradients become updates: "allreduce" (whole all-reduces), "sharded" (reduce-scatters, updates of
        shards, all-gathers) or "servers" (pushes to parameter servers, pulls from them). None: "servers" if
        the profile was measured with parameter servers or `cluster` is given, "sharded" if updates wait for
        a global norm, else "allreduce".
    framework
        "ddp" or "horovod": make buckets or groups for that framework, with its barrier. None: make a schedule
        for PACE's runtime.
    slot_s
        Length of a slot in seconds; None for continuous time.
    max_group_bytes
        Largest size of a group of several gradients, in bytes; None for no limit.
    max_segment_bytes
        Largest size of a segment, in bytes; None for no limit.
    risk
        What to minimize under load: the "mean" iteration time, or its 95th percentile ("p95").
    search_calls
        Budget of the local search on profiles with parallel branches, in calls of the oracle. The result does
        not depend on the machine's speed.
    cluster
        The parameter servers of exchange "servers"; None for those of the profile's cost. A gradient with
        transfer ratios, or with the rows touched, is a group of its own.
    partition_bytes
        With servers: size of the segments; if left out, the best size is searched for. The cluster's
        ``min_partition_bytes`` is taken if that is more.
    memory_bytes
        With a graph: largest peak memory in bytes; None for no limit.
    discipline
        With servers: what the runtime sends if the segment that is planned next is late. "overtake": another
        one that is ready; "static": nothing.
    """

    refused_as = InvalidOptions

    oracle: Oracle = "jackson"
    lp_solver: Annotated[LpSolver, Field(exclude_if=lambda solver: solver == "scipy")] = "scipy"
    fusion: Fusion = "optimal"
    search_r: Annotated[SearchR, Field(exclude_if=lambda search: search == "all")] = "all"
    exchange: Exchange | None = None
    framework: Framework | None = None
    slot_s: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] | None = None
    max_group_bytes: Annotated[int, Field(gt=0)] | None = None
    max_segment_bytes: Annotated[int, Field(gt=0)] | None = None
    risk: Risk = "mean"
    search_calls: Annotated[int, Field(ge=1, le=10_000_000)] = 2000
    cluster: Cluster | None = None
    partition_bytes: Annotated[int, Field(gt=0)] | None = None
    memory_bytes: Annotated[int, Field(gt=0, lt=2**63)] | None = None
    discipline: SendDiscipline = "overtake"

    @model_validator(mode="after")
    def _search_r_is_for_the_paper(self) -> Self:
        if self.search_r == "momentum" and self.fusion != "paper":
            raise ValueError(f'search_r "momentum" is for fusion "paper", not "{self.fusion}": leave it out')
        if self.search_r == "momentum" and self.max_group_bytes is not None:
            raise ValueError('search_r "momentum" cannot keep max_group_bytes: leave one of them out')
        return self

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
