"""Options of all front doors: the plan that a job follows, and how its gradients are summed.

Values are checked when the objects are created; ``entry_point`` reads the environment.
"""

import importlib.util
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from torch import nn
from torch.distributed import ProcessGroup

from pace.documents.schedule import Schedule
from pace.errors import InvalidOptions
from pace.packs import parts
from pace.runtime.argument_checks import (
    is_number,
    refusal,
    require_instance,
    require_one_of,
    require_text,
    require_whole,
)
from pace.runtime.transports.compression import Compression
from pace.runtime.transports.cuda import CudaTransport
from pace.runtime.transports.device import device_of
from pace.runtime.transports.gloo import GlooTransport
from pace.runtime.transports.transport import Discipline, Order
from pace.solver.knob_search import Search

Mode = Literal["overlap", "barrier", "auto", "check"]
GradientOp = Literal["average", "sum"]
Knob = Literal["partition", "credit", "group", "order"]
ShardingChoice = Literal["off", "auto", "on"]

# Words for what an option of another name says.
_ELSEWHERE = {
    "backend": "communication=AllReduce() or pace_servers.runtime.ParameterServers() says what sums",
    "consistency": "pace_servers.runtime.asynchronous() trains without waiting for all ranks",
}


def refuse_misplaced(where: str, given: Iterable[str]) -> None:
    """Refuse names of options that belong into an options object.

    Raises
    ------
    InvalidOptions
        The message names the object.
    """
    for name in given:
        kinds: Iterator[Any] = chain((Plan, AllReduce), *parts("communications"))
        kind = next((kind for kind in kinds if name in _names(kind)), None)
        if kind is not None:
            keyword = "plan" if kind is Plan else "communication"
            package = "" if kind in (Plan, AllReduce) else f"{kind.__module__.rpartition('.')[0]}."
            shown = f"{keyword}={package}{kind.__name__}({name}=...)"
            raise InvalidOptions(f"{where} has no option {name}: give {shown}")
        if name in _ELSEWHERE:
            raise InvalidOptions(f"{where} has no option {name}: {_ELSEWHERE[name]}")


def refuse_unknown(where: str, known: Sequence[str], given: Iterable[str]) -> None:
    """Refuse names that a front door or an options object does not know.

    Raises
    ------
    InvalidOptions
        The message names the object that has the option, or the existing options.
    """
    unknown = [name for name in given if name not in known]
    refuse_misplaced(where, unknown)
    if unknown:
        raise InvalidOptions(f"{where} has no option {unknown[0]}: it has {', '.join(known)}")


def _names(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


class NamedOptions:
    """Base of all options; an unknown name is an error that lists the existing ones.

    Raises
    ------
    InvalidOptions
        Also for an invalid value: the message names the option and what is allowed, but never shows secrets.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers know the names from the annotations

        def __new__(cls, *positional: Any, **given: Any) -> Any:
            """Refuse what ``__init__`` would not take."""
            if positional:
                shown = type(positional[0]).__name__
                raise InvalidOptions(
                    f"{cls.__name__} takes {', '.join(_names(cls))} by name only; got a positional {shown}"
                )
            refuse_unknown(cls.__name__, _names(cls), given)
            return super().__new__(cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanning(NamedOptions):
    """When to profile, and what counts as drift. Rank 0's settings apply to all ranks.

    Attributes
    ----------
    profile_iterations
        Number of iterations to record, after 4 for warm-up; 0: the job never profiles itself.
    drift_ratio
        Factor, at least 1, by which iterations must become longer or shorter to count as drift, or would if
        only their compute had changed.
    stale_ratio
        As `drift_ratio`, but compared with the prediction of a schedule from another job's profile.
        Predictions leave out the compute that sending takes on shared cores.
    drift_iterations
        Number of iterations whose median is compared, on the slowest rank.
    interval_s
        Smallest number of seconds from the last profile, or the adoption of a schedule, to a new profile.
    """

    profile_iterations: int = 20
    drift_ratio: float = 1.2
    stale_ratio: float = 2.0
    drift_iterations: int = 50
    interval_s: float = 600.0

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        for name, least in (
            ("profile_iterations", 0),
            ("drift_ratio", 1),
            ("stale_ratio", 1),
            ("drift_iterations", 1),
            ("interval_s", 0),
        ):
            value = getattr(self, name)
            if not (is_number(value) and value >= least):
                raise refusal(name, value, f"a number of at least {least}")

    def to_json(self) -> str:
        """Serialize for the other ranks."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Create from the values that ``to_json`` returned."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(NamedOptions):
    """The schedule that a job follows, its source, and the order of sends.

    Without a schedule and a service, the job computes a simple plan.

    Attributes
    ----------
    schedule
        A `Schedule` or its path.
    service, job, api_key
        Address of the service, name of the job there, and API key. Default: PACE_URL, PACE_JOB, PACE_API_KEY.
    order
        Which segment goes next: "static", "adaptive", "overtake" or "priority". "auto" chooses by the
        transport.
    credit_bytes
        Largest number of bytes in flight; 0: one segment at a time. Default: the schedule's value. For
        servers: largest number of bytes that the operating system holds unsent, 128 KiB by default.
    replanning
        When a job with a service profiles itself. Default: PACE_PROFILE_ITERATIONS, PACE_DRIFT_RATIO,
        PACE_DRIFT_ITERATIONS, PACE_REPLAN_INTERVAL_S.
    """

    schedule: Schedule | str | Path | None = None
    service: str | None = None
    job: str | None = None
    api_key: str | None = field(default=None, repr=False)
    order: Order = "auto"
    credit_bytes: int | None = None
    replanning: Replanning | None = None

    def __post_init__(self) -> None:
        """Refuse values that are not allowed, or contradict one another."""
        if self.schedule is not None:
            require_instance(
                "schedule", self.schedule, (Schedule, str, Path), "a Schedule or the path of one"
            )
        for name in ("service", "job", "api_key"):
            value = getattr(self, name)
            if value is not None:
                require_text(name, value, secret=name == "api_key")
        require_one_of("order", self.order, (*get_args(Discipline), "auto"))
        if self.credit_bytes is not None:
            require_whole("credit_bytes", self.credit_bytes, least=0)
        if self.replanning is not None:
            require_instance("replanning", self.replanning, Replanning, "a Replanning")
        if self.schedule is not None and self.service is not None:
            raise InvalidOptions("give a Plan a schedule or a service, not both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tune(NamedOptions):
    """Search for the plan while the job trains, as ByteScheduler does. Needs no profile and no service.

    Rank 0 proposes how gradients are fused, cut and sent. All ranks adopt a proposal after the same step, and
    time some iterations of it. At the end, the two best proposals and plain operation are timed again in
    turns, and the fastest stays. The weights are those of any other plan.

    Attributes
    ----------
    method
        Search method: "bayes" (needs `pace-scheduler[tune]`), "grid", "random" or "momentum".
    knobs
        What is searched: any of "partition" (largest segment), "credit" (bytes in flight), "group" (bytes
        that are fused) and "order".
    num_trials
        Number of proposals that are timed.
    iterations
        Number of timed iterations of each proposal; its result is their median on the slowest rank.
    seed
        Seed of random choices.
    """

    schedule: ClassVar[None] = None
    order: ClassVar[Order] = "auto"
    credit_bytes: ClassVar[None] = None

    method: Search = "bayes"
    knobs: Sequence[Knob] = get_args(Knob)
    num_trials: int = 15
    iterations: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse values that are not allowed."""
        require_one_of("method", self.method, get_args(Search))
        known = get_args(Knob)
        names = self.knobs
        if isinstance(names, str) or not isinstance(names, Sequence) or not names:
            raise refusal("knobs", names, f"a list of {', '.join(known)}")
        for knob in names:
            require_one_of("knobs", knob, known)
        for field_name in ("num_trials", "iterations"):
            require_whole(field_name, getattr(self, field_name), least=1)
        require_whole("seed", self.seed, least=0)
        if self.method == "bayes" and importlib.util.find_spec("bayes_opt") is None:
            raise InvalidOptions(
                'method is "bayes", and bayesian-optimization is not installed: pip install'
                ' "pace-scheduler[tune]", or use another method, such as "random"'
            )

    @property
    def shown(self) -> dict[str, Any]:
        """What must be equal on all ranks."""
        return asdict(self) | {"knobs": sorted(self.knobs)}


class Communication(NamedOptions, ABC):
    """What sums gradients: ``AllReduce``, or a communication of a pack.

    Attributes
    ----------
    compression
        Type in which gradients are sent; "none" for their own.
    """

    __slots__ = ()

    compression: Compression

    @property
    def sharding(self) -> ShardingChoice:
        """Whether each rank updates only its shard of the parameters."""
        return "off"

    @abstractmethod
    def connect(
        self, model: nn.Module, plan: Plan | Tune | None, timeout_s: float, process_group: ProcessGroup | None
    ) -> GlooTransport:
        """Open the transport; collective: every rank must call it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(Communication):
    """Ranks sum gradients among themselves.

    Attributes
    ----------
    compression
        Type in which gradients are sent and summed: "fp16", "bf16" (not over Horovod), or "none" for their
        own.
    sharding
        Whether each rank updates only its shard of the parameters: "on", "auto" (`mode="auto"` tries it) or
        "off".
    """

    compression: Compression = "none"
    sharding: ShardingChoice = "off"

    def __post_init__(self) -> None:
        """Refuse values that are not allowed."""
        require_one_of("compression", self.compression, get_args(Compression))
        require_one_of("sharding", self.sharding, get_args(ShardingChoice))

    def connect(
        self, model: nn.Module, plan: Plan | Tune | None, timeout_s: float, process_group: ProcessGroup | None
    ) -> GlooTransport:
        """Open a transport that sums in the memory of the model's device."""
        del plan
        device = device_of(model)
        if device is None:
            return GlooTransport(timeout_s=timeout_s, process_group=process_group)
        return CudaTransport(device, timeout_s=timeout_s, process_group=process_group)
