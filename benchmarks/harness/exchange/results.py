"""What a record of pushes and pulls holds; JSON-ready."""

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness.results import ContenderResult, SettingResult

# What the targets compare our runtime with.
EQUAL_PARTS, WHOLE = "fifo", "fifo-whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmodifiedRun:
    """Training by another system on the same hosts, with the same layers and sleeps.

    Attributes
    ----------
    windows_s
        Synchronous: from the last worker's end of a step to the last worker's next. Asynchronous: every
        worker's steps.
    """

    name: str
    label: str
    windows_s: list[float]
    failed: str | None = None

    @property
    def iteration_s(self) -> float:
        """Median window."""
        return statistics.median(self.windows_s)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, relative to the median."""
        low, _, high = statistics.quantiles(self.windows_s, n=4)
        return (high - low) / 2 / self.iteration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSetting(SettingResult):
    """All contenders in one setting: a model, a layout, a ratio, with or without pacing.

    Attributes
    ----------
    layout
        "4+1": workers and servers on hosts of their own; "4 colocated".
    pacing_bytes_per_s
        Of every connection; None without pacing.
    """

    layout: str
    pacing_bytes_per_s: float | None
    unmodified: list[UnmodifiedRun]

    def named(self, name: str) -> ContenderResult | None:
        """Return a contender by name, if it counts."""
        return next((each for each in self.contenders if each.name == name and each.counts), None)

    @property
    def best_ours(self) -> ContenderResult | None:
        """The fastest of our runtime's orders over servers."""
        ours = [each for each in self.contenders if each.name.startswith("pace") and each.counts]
        return min(ours, key=lambda each: each.iteration_s, default=None)

    def gain(self, contender: ContenderResult | None, over: str) -> float | None:
        """How many times faster a contender is than the one of that name."""
        other = self.named(over)
        return other.iteration_s / contender.iteration_s if other and contender else None


def as_exchange_document(setting: ExchangeSetting) -> dict[str, Any]:
    """Return a setting as JSON holds it, with what follows from the numbers beside them."""
    document = asdict(setting)
    for entry, contender in zip(document["contenders"], setting.contenders, strict=True):
        if contender.counts:
            entry |= {
                "iteration_s": contender.iteration_s,
                "spread": contender.spread,
                "error": contender.error,
                "gap": contender.gap,
                "over_equal_parts": setting.gain(contender, EQUAL_PARTS),
                "over_whole_tensors": setting.gain(contender, WHOLE),
            }
    for entry, run in zip(document["unmodified"], setting.unmodified, strict=True):
        if len(run.windows_s) > 1:
            entry |= {"iteration_s": run.iteration_s, "spread": run.spread}
    document["plain_error"] = setting.plain_error
    return document


def from_exchange_document(document: dict[str, Any]) -> ExchangeSetting:
    """Read what ``as_exchange_document`` wrote."""

    def only(kind: Any, entry: dict[str, Any]) -> Any:
        return kind(**{name: value for name, value in entry.items() if name in kind.__dataclass_fields__})

    lists = {
        "contenders": [only(ContenderResult, entry) for entry in document["contenders"]],
        "unmodified": [only(UnmodifiedRun, entry) for entry in document["unmodified"]],
    }
    setting: ExchangeSetting = only(ExchangeSetting, document | lists)
    return setting
