"""What a record holds: numbers as measured, and the few that follow from them. JSON-ready."""

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness.contenders import FRAMEWORK_PAIRS, UNTUNED


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderResult:
    """One contender in one setting.

    Attributes
    ----------
    rounds_s
        For every round, the windows measured in it, in seconds.
    predicted_s
        What the simulator says, from the profile and the cost captured on the testbed.
    bound_s
        No schedule of any fusion is faster, at its backend's all-reduce cost.
    largest_weight_error
        How far the farthest weight is from what it should be.
    disqualified
        Why it does not count, None when it does.
    bucket_mib
        For DDP's sweep: the best size, as an unscaled model would have it, and what each size took.
    """

    name: str
    label: str
    peer: bool
    rounds_s: list[list[float]]
    predicted_s: float
    bound_s: float
    largest_weight_error: float | None = None
    disqualified: str | None = None
    bucket_mib: float | None = None
    sweep_s: dict[str, float] | None = None

    @property
    def windows_s(self) -> list[float]:
        """All windows of all rounds."""
        return [window for windows in self.rounds_s for window in windows]

    @property
    def iteration_s(self) -> float:
        """Median window."""
        return statistics.median(self.windows_s)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, relative to the median."""
        low, _, high = statistics.quantiles(self.windows_s, n=4)
        return (high - low) / 2 / self.iteration_s

    @property
    def counts(self) -> bool:
        """Whether it trained right and was timed."""
        return self.disqualified is None and len(self.windows_s) > 1

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.iteration_s - 1

    @property
    def gap(self) -> float:
        """Measured over the bound, less one."""
        return self.iteration_s / self.bound_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingResult:
    """All contenders in one setting: a model, so many workers, a communication/compute ratio.

    Attributes
    ----------
    plain_s
        Median iteration of all ranks side by side without any communication; `compute_s` is the profile's.
    load
        Processes that wanted a core in the minute before, from the machine's load average.
    max_norm
        What gradients were clipped to by their global norm; None where they were not.
    contention
        How compute and all-reduces of each backend slow one another down; empty where it was not measured.
    """

    model: str
    workers: int
    ratio: float
    compute_s: float
    plain_s: float
    gradients: int
    total_bytes: int
    time_factor: float
    size_factor: float
    load: float
    contenders: list[ContenderResult]
    max_norm: float | None = None
    contention: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def plain_error(self) -> float:
        """Emulated compute against the profile's: plain over compute, less one."""
        return self.plain_s / self.compute_s - 1

    def best(self, names: tuple[str, ...] | None = None) -> ContenderResult | None:
        """Return the fastest peer that counts, among these names where given."""
        peers = [c for c in self.contenders if c.peer and c.counts and (names is None or c.name in names)]
        return min(peers, key=lambda c: c.iteration_s, default=None)

    @property
    def best_pace(self) -> ContenderResult | None:
        """The fastest of PACE's."""
        ours = [c for c in self.contenders if c.name.startswith("pace") and c.counts]
        return min(ours, key=lambda c: c.iteration_s, default=None)

    def speedup(self, contender: ContenderResult, names: tuple[str, ...] | None = None) -> float | None:
        """How many times faster a contender is than the best peer among `names`."""
        best = self.best(names)
        return best.iteration_s / contender.iteration_s if best and contender.counts else None

    def over_own_default(self, contender: ContenderResult) -> float | None:
        """Return how many times faster PACE is than what its framework does by default; None for others."""
        own = tuple(default for default, ours in FRAMEWORK_PAIRS.values() if ours == contender.name)
        return self.speedup(contender, own) if own else None


def as_document(setting: SettingResult) -> dict[str, Any]:
    """Return a setting as JSON holds it, with what follows from the numbers beside them."""
    document = asdict(setting)
    for entry, contender in zip(document["contenders"], setting.contenders, strict=True):
        if contender.counts:
            entry |= {
                "iteration_s": contender.iteration_s,
                "spread": contender.spread,
                "error": contender.error,
                "gap": contender.gap,
                "speedup_over_best_peer": setting.speedup(contender),
                "speedup_over_best_untuned_peer": setting.speedup(contender, UNTUNED),
                "speedup_over_best_ddp": setting.speedup(contender, ("ddp", "ddp-best")),
            }
            if (own := setting.over_own_default(contender)) is not None:
                entry["speedup_over_own_default"] = own
    document["plain_error"] = setting.plain_error
    return document


def from_document(document: dict[str, Any]) -> SettingResult:
    """Read what ``as_document`` wrote."""
    known = set(ContenderResult.__dataclass_fields__)
    contenders = [
        ContenderResult(**{name: value for name, value in entry.items() if name in known})
        for entry in document["contenders"]
    ]
    own = {name: document[name] for name in SettingResult.__dataclass_fields__ if name in document}
    return SettingResult(**(own | {"contenders": contenders}))
