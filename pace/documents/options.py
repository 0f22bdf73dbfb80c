"""What a caller may ask of the optimizer and the simulator: in Python, in commands and of the service."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from pace.documents.base import Document
from pace.documents.cluster import Cluster, Consistency
from pace.documents.schedule import Exchange, Framework, Fusion, LpSolver, Oracle, SendDiscipline
from pace.errors import InvalidOptions

Risk = Literal["mean", "p95"]
SearchR = Literal["all", "momentum"]

JOB, NETWORK = "The job", "Network"
OF_PROFILES: tuple[Exchange, ...] = ("allreduce", "sharded", "servers")


@dataclass(frozen=True, slots=True)
class For:
    """Which exchanges have an option, and how a command shows it.

    Attributes
    ----------
    exchanges
        Their names.
    unset
        What leaving the option out means, if its value does not say so.
    needs
        Another option and its value, without which this one means nothing; None for any value.
    example
        Several values as a command takes them: separated by commas.
    panel
        Heading under which a command's help lists the option; None for the first, unnamed list.
    """

    exchanges: tuple[Exchange, ...] = ()
    unset: str | None = None
    needs: tuple[str, str | None] | None = None
    example: str | None = None
    panel: str | None = None

    def is_chosen(self, value_of: Callable[[str], object]) -> bool:
        """Return whether the option that this one needs has a value that it needs."""
        if self.needs is None:
            return True
        value = value_of(self.needs[0])
        return value is not None and self.needs[1] in (None, value)


class DescribedOptions(Document):
    """Options that commands have, too: each such field says how, with ``For``, and what it means."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    refused_as = InvalidOptions

    @classmethod
    def described(cls) -> dict[str, For]:
        """Return how commands have an option, by its name."""
        return {
            name: each
            for name, field in cls.model_fields.items()
            for each in field.metadata
            if isinstance(each, For)
        }


class ExchangeOptions(DescribedOptions):
    """Options of which each exchange has some."""

    exchange: Exchange | None = None

    @classmethod
    def names_of(cls, exchange: Exchange) -> tuple[str, ...]:
        """Return the options that an exchange has."""
        return tuple(name for name, each in cls.described().items() if exchange in each.exchanges)

    def refuse_others(self, exchange: Exchange) -> None:
        """Refuse what an exchange does not have; raises InvalidOptions."""
        if self.exchange not in (None, exchange):
            raise InvalidOptions(
                f'exchange "{self.exchange}" is not possible here, only "{exchange}": leave it out'
            )
        names = self.names_of(exchange)
        changed = self.model_dump(exclude_defaults=True).keys() - {"exchange"}
        if others := sorted(changed.difference(names)):
            raise InvalidOptions(
                f'{", ".join(others)}: exchange "{exchange}" only has {", ".join(names)}: leave the rest out'
            )
        for name in sorted(changed):
            each = self.described()[name]
            if each.needs is not None and not each.is_chosen(lambda other: getattr(self, other)):
                needs = each.needs
                raise InvalidOptions(f'{name} needs {needs[0]} "{needs[1]}": give it, or leave {name} out')


class Options(ExchangeOptions):
    """Options of ``optimize``."""

    exchange: Annotated[
        Exchange | None,
        For(
            (),
            "graph for a graph; servers if the profile or an option names them; sharded if updates wait for "
            "a global norm; else allreduce",
        ),
    ] = None
    """How gradients become updates: allreduce (whole all-reduces), sharded (reduce-scatters, updates of
    shards, all-gathers), servers (parameter servers), or graph (the collectives of a graph)."""

    framework: Annotated[Framework | None, For(("allreduce",), "PACE's own runtime")] = None
    """Framework that follows the schedule: ddp (by its buckets) or horovod (by its groups). Both wait for all
    gradients before the next forward pass."""

    fusion: Annotated[Fusion, For(OF_PROFILES)] = "optimal"
    """How gradients are fused into groups: optimal (the best groups found), paper (Algorithm 1 of the PACE
    paper), or none (one group per gradient)."""

    search_r: Annotated[
        SearchR,
        Field(exclude_if=lambda search: search == "all"),
        For(("allreduce",), needs=("fusion", "paper")),
    ] = "all"
    """Which numbers of groups Algorithm 1 tries: all, or those that a search by momentum visits (at most a
    quarter of all), which needs fewer calls of the oracle and may miss the best."""

    oracle: Annotated[Oracle, For(("allreduce",))] = "jackson"
    """Algorithm that finds the best order of given groups: jackson (longest tail first, exact in continuous
    and in slotted time) or lp (the totally unimodular linear program, which needs `slot_s`). Both give the
    same schedule."""

    lp_solver: Annotated[
        LpSolver,
        Field(exclude_if=lambda solver: solver == "scipy"),
        For(("allreduce",), needs=("oracle", "lp")),
    ] = "scipy"
    """Solver of the linear programs: scipy (HiGHS), pulp (CBC through PuLP) or pulp:NAME (the solver that
    PuLP knows by this name)."""

    slot_s: Annotated[
        Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] | None,
        For(("allreduce",), "continuous time"),
    ] = None
    """Length of a time slot in seconds. The order is computed in whole slots; each transfer starts as soon as
    the one before it ends. With slots, late ranks and slower calls are ignored."""

    max_group_bytes: Annotated[Annotated[int, Field(gt=0, lt=2**63)] | None, For(OF_PROFILES, "no limit")] = (
        None
    )
    """Largest size in bytes of a group of several gradients; a single gradient may be larger."""

    max_segment_bytes: Annotated[
        Annotated[int, Field(gt=0, lt=2**63)] | None, For(("allreduce", "sharded"), "no limit")
    ] = None
    """Largest size in bytes of a segment, the part of a group that is sent in one call."""

    risk: Annotated[Risk, For(("allreduce", "sharded"))] = "mean"
    """What to minimize under load, with late ranks and slower calls: mean (the mean iteration time) or p95
    (its 95th percentile)."""

    search_calls: Annotated[int, Field(ge=1, le=10_000_000), For(OF_PROFILES)] = 2000
    """Largest number of orders that the local search computes on profiles with parallel branches. The result
    does not depend on the machine's speed."""

    cluster: Annotated[Cluster | None, For(("servers",), "the servers of the profile's cost")] = None
    """The parameter servers. A gradient with transfer ratios, or with the rows touched, is a group of its
    own."""

    partition_bytes: Annotated[
        Annotated[int, Field(gt=0, lt=2**63)] | None, For(("servers",), "the best size found")
    ] = None
    """Size in bytes of the segments that are sent to parameter servers; at least the cluster's
    `min_partition_bytes`."""

    discipline: Annotated[SendDiscipline, For(("servers",))] = "overtake"
    """What the runtime sends if the segment that is planned next is late: another one that is ready
    (overtake), or nothing (static)."""

    memory_bytes: Annotated[Annotated[int, Field(gt=0, lt=2**63)] | None, For(("graph",), "no limit")] = None
    """Largest peak memory in bytes."""

    @model_validator(mode="after")
    def _search_r_is_for_the_paper(self) -> Self:
        if self.search_r == "momentum" and self.fusion != "paper":
            raise ValueError(f'search_r "momentum" is for fusion "paper", not "{self.fusion}": leave it out')
        if self.search_r == "momentum" and self.max_group_bytes is not None:
            raise ValueError('search_r "momentum" cannot keep max_group_bytes: leave one of them out')
        return self


class SimulationOptions(ExchangeOptions):
    """Options of ``simulate``."""

    exchange: Annotated[
        Exchange | None,
        For(
            (),
            "graph for a graph; servers if the profile or an option names them; else allreduce and sharded",
        ),
    ] = None
    """Compare only the policies for this way of exchanging gradients or parameters: allreduce, sharded,
    servers or graph."""

    cluster: Annotated[Cluster | None, For(("servers",), "the servers of the profile's cost")] = None
    """The parameter servers."""

    iterations: Annotated[int, Field(ge=1, le=1_000_000), For(OF_PROFILES)] = 1
    """Number of iterations to simulate."""

    jitter: Annotated[float, Field(ge=0, le=10), For(OF_PROFILES)] = 0.0
    """Standard deviation of random op durations, relative to their mean; 0 for fixed durations."""

    seed: Annotated[int, Field(ge=0, lt=2**63), For(OF_PROFILES)] = 0
    """Seed of the random op durations: the same seed gives the same result."""

    consistency: Annotated[Consistency, For(("servers",))] = "sync"
    """Whether workers wait for one another (sync) or not (async)."""

    staleness: Annotated[Annotated[int, Field(ge=0, le=1_000_000)] | None, For(("servers",))] = None
    """How many iterations a worker may be ahead of the slowest one."""

    knobs: Annotated[dict[str, Any], For((*OF_PROFILES, "graph"))] = Field(default_factory=dict)
    """Values of knobs, for every policy that has them."""

    @property
    def policies_of(self) -> Exchange | None:
        """The exchange whose policies are compared; None for all policies on one network."""
        return "servers" if self.cluster is not None else self.exchange

    @property
    def is_stale(self) -> bool:
        """Whether workers may use parameters that lack other workers' newest updates."""
        return self.consistency == "async" or bool(self.staleness)
