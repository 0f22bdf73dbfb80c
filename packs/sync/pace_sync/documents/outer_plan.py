"""The outer plan: fragments, when each is sent over which link, after which delay it is applied."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pace.documents.base import Bytes, Document, Index, JsonDocument, load, parse
from pace.documents.cost_document import NonNegative, Positive
from pace.documents.profile import Name
from pace_sync.errors import InvalidSync

Share = Annotated[float, Field(ge=0, le=1)]


class LayerPart(Document):
    """A stretch of a layer's bytes."""

    refused_as = InvalidSync

    layer: Name
    offset_bytes: Bytes
    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]


class OuterFragment(Document):
    """What is sent as one all-reduce.

    Attributes
    ----------
    send_step
        It is sent after step t, counted from 1, if t modulo the period equals this number.
    delay_steps
        Number of further steps after which it is applied.
    start_s, end_s
        Start and end of its transfer in seconds from the period's boundary 0. It may end in the next period.
    """

    refused_as = InvalidSync

    parts: Annotated[tuple[LayerPart, ...], Field(min_length=1)]
    link: Name
    send_step: Index
    delay_steps: Index
    start_s: NonNegative
    end_s: NonNegative

    @property
    def size_bytes(self) -> int:
        """Bytes of its parts."""
        return sum(part.size_bytes for part in self.parts)


class BoundaryWait(Document):
    """Time that workers wait after a step, in every period."""

    refused_as = InvalidSync

    step: Index
    wait_s: Positive


class OuterPrediction(Document):
    """The steady state of a plan.

    Attributes
    ----------
    period_s
        Duration of a period, in seconds.
    utilization
        Share of time in which steps run.
    gap
        ``period_s`` divided by the bound, minus 1.
    most_under_way
        Largest number of fragments that are sent and not yet applied at the same time.
    """

    refused_as = InvalidSync

    period_s: Positive
    utilization: Share
    gap: NonNegative
    most_under_way: Index


class OuterBound(Document):
    """Bound on every plan: no plan has a shorter period. See ``pace_sync.solver.streaming.capacity``."""

    refused_as = InvalidSync

    period_s: Positive
    utilization: Share


class OuterRival(Document):
    """Utilization of another rule for the same problem, over its best link."""

    refused_as = InvalidSync

    rule: Literal["torchft, best settings", "torchft, one fragment", "streaming DiLoCo, three layers"]
    num_fragments: Index
    delay_steps: Index
    utilization: Share


class OuterPlan(JsonDocument):
    """Fragments in the order in which they are sent.

    A plan that was built is valid: each byte is sent once in a period, and delays are less than the period.
    """

    refused_as = InvalidSync

    schema_version: Literal[1] = 1
    problem_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    version: str
    method: str
    period_steps: Annotated[int, Field(ge=1)]
    fragments: Annotated[tuple[OuterFragment, ...], Field(min_length=1)]
    waits: tuple[BoundaryWait, ...]
    predicted: OuterPrediction
    bound: OuterBound
    rivals: tuple[OuterRival, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sent: dict[str, list[tuple[int, int]]] = {}
        before = 0
        for number, fragment in enumerate(self.fragments):
            if max(fragment.send_step, fragment.delay_steps) >= self.period_steps:
                raise ValueError(
                    f"fragment {number}: send_step and delay_steps must be less than "
                    f"period_steps {self.period_steps}"
                )
            if fragment.send_step < before:
                raise ValueError(f"fragment {number} is sent before fragment {number - 1}: sort by send_step")
            before = fragment.send_step
            for part in fragment.parts:
                sent.setdefault(part.layer, []).append((part.offset_bytes, part.size_bytes))
        for name, stretches in sent.items():
            at = 0
            for offset, size in sorted(stretches):
                if offset != at:
                    what = "are sent twice" if offset < at else "are not sent"
                    raise ValueError(f'layer "{name}": bytes {min(at, offset)} to {max(at, offset)} {what}')
                at += size
        if any(wait.step >= self.period_steps for wait in self.waits):
            raise ValueError(f"waits: steps must be less than period_steps {self.period_steps}")
        return self


def parse_outer_plan(document: bytes | str) -> OuterPlan:
    """Read an outer plan from JSON; raises InvalidSync with one line per fault."""
    return parse(OuterPlan, document)


def load_outer_plan(path: str | Path) -> OuterPlan:
    """Read an outer plan from a JSON file; raises InvalidSync and OSError."""
    return load(parse_outer_plan, path, InvalidSync)
