"""What a record holds of each setting: numbers as measured, and the few that follow from them. JSON-ready."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWindows:
    """Windows of one way to train.

    Attributes
    ----------
    rounds_s
        For every round, the windows measured in it, in seconds.
    disqualified
        Why it does not count, None when it does.
    """

    name: str
    label: str
    rounds_s: list[list[float]]
    disqualified: str | None = None

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
        """Whether the contender trained right and was timed."""
        return self.disqualified is None and len(self.windows_s) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderResult(MeasuredWindows):
    """One contender in one setting.

    Attributes
    ----------
    predicted_s
        The simulator's window, from the profile and the costs measured on these hosts. If compute is real,
        the profile's durations are scaled to `plain_s` of the setting.
    bound_s
        No schedule of any fusion is faster at these costs and durations.
    largest_weight_error
        How far the farthest weight is from what it should be.
    bucket_mib
        For DDP's sweep: the best size, as an unscaled model would have it, and what each size took.
    """

    peer: bool
    predicted_s: float
    bound_s: float
    largest_weight_error: float | None = None
    bucket_mib: float | None = None
    sweep_s: dict[str, float] | None = None

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
    """All contenders in one setting: a model, a layout, a communication/compute ratio.

    Attributes
    ----------
    plain_s
        Median iteration of all ranks side by side without communication, in turns with the contenders;
        `compute_s` is the profile's.
    load
        The machine's load average before the setting.
    max_norm
        The global norm that gradients were clipped to; None where they were not.
    contention
        How compute and all-reduces of each backend slow one another down; empty where it was not measured.
    pacing_bytes_per_s
        Rate of every connection to a server; None without pacing or servers.
    two_wires
        Of a sharded model: its three lower bounds, and what was measured within a replica; all in seconds.
    unmodified
        Training by other systems on the same hosts, with the same layers and sleeps.
    """

    model: str
    layout: str
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
    contention: dict[str, dict[str, Any]] = field(default_factory=dict)
    pacing_bytes_per_s: float | None = None
    two_wires: dict[str, Any] | None = None
    unmodified: list[MeasuredWindows] = field(default_factory=list)

    def __str__(self) -> str:
        paced = ", paced" if self.pacing_bytes_per_s else ""
        return f"{self.model}, {self.layout}, ratio {self.ratio:g}{paced}"

    @property
    def plain_error(self) -> float:
        """Compute as measured in turns against the profile's: plain over compute, less one."""
        return self.plain_s / self.compute_s - 1

    def named(self, name: str) -> ContenderResult | None:
        """Return a contender by name, if it counts."""
        return next((each for each in self.contenders if each.name == name and each.counts), None)

    def best(self, names: Sequence[str] | None = None) -> ContenderResult | None:
        """Return the fastest that counts, among these names or, without any, among all peers."""
        found = [c for c in self.contenders if c.counts and (c.peer if names is None else c.name in names)]
        return min(found, key=lambda c: c.iteration_s, default=None)

    @property
    def best_pace(self) -> ContenderResult | None:
        """The fastest of PACE's."""
        return self.best([c.name for c in self.contenders if c.name.startswith("pace")])

    def speedup(self, contender: ContenderResult, names: Sequence[str] | None = None) -> float | None:
        """Return how many times faster a contender is than the best of these names, or of all peers."""
        best = self.best(names)
        return best.iteration_s / contender.iteration_s if best and contender.counts else None


def windows_of(starts: Sequence[Sequence[float]]) -> list[float]:
    """Turn every rank's starts of windows into the windows' lengths: from the last rank to the last rank."""
    latest = [max(at) for at in zip(*starts, strict=True)]
    return [later - earlier for earlier, later in pairwise(latest)]


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
            }
    document["plain_error"] = setting.plain_error
    return document


def from_document(document: dict[str, Any]) -> SettingResult:
    """Parse the document that ``as_document`` returned."""

    def only(kind: Any, entry: dict[str, Any]) -> Any:
        return kind(**{name: value for name, value in entry.items() if name in kind.__dataclass_fields__})

    lists = {
        "contenders": [only(ContenderResult, entry) for entry in document["contenders"]],
        "unmodified": [only(MeasuredWindows, entry) for entry in document["unmodified"]],
    }
    setting: SettingResult = only(SettingResult, document | lists)
    return setting
