"""The outer-sync document: what streaming DiLoCo exchanges, over which links, and how late it may be."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pace.documents.base import Document, JsonDocument, load, parse, repeated
from pace.documents.cost_document import NonNegative, Positive
from pace.documents.profile import ELEMENT_BYTES, MAX_TOTAL_BYTES, MAX_TOTAL_S, DType, Name
from pace_sync.errors import InvalidSync

Cutting = Literal["anywhere", "between-layers", "none"]
MAX_PERIOD = 10_000
MAX_LAYERS = 100_000


class OuterLayer(Document):
    """Neighboring parameters of the model.

    Attributes
    ----------
    size_bytes
        Size of its parameters in the outer step, in bytes.
    """

    refused_as = InvalidSync

    name: Name
    size_bytes: Annotated[int, Field(gt=0, lt=2**63)]
    dtype: DType = "float32"

    @model_validator(mode="after")
    def _whole(self) -> Self:
        element = ELEMENT_BYTES[self.dtype]
        if self.size_bytes % element:
            raise ValueError(f"{self.size_bytes} bytes are no multiple of {self.dtype}'s {element} bytes")
        return self


class OuterLink(Document):
    """A network between the workers.

    Attributes
    ----------
    bytes_per_s
        Rate of each worker's link, in each direction.
    latency_s
        Latency of one message between two workers, in seconds.
    """

    refused_as = InvalidSync

    name: Name
    bytes_per_s: Positive
    latency_s: NonNegative = 0.0


class OuterSync(JsonDocument):
    """A model whose fragments are averaged over workers, each once in a period of steps.

    A document that was built is valid: names are unique, and a fragment is applied before it is sent again.

    Attributes
    ----------
    step_s
        Compute time of an inner step, in seconds.
    period_steps
        Number of steps in which every fragment is averaged once (H).
    max_delay_steps
        Largest number of steps from sending a fragment to applying its mean (tau).
    cutting
        "anywhere": a fragment may be part of a layer. "between-layers": fragments are whole layers.
        "none": each layer is a fragment.
    sent_fraction
        Bytes sent for each byte of a layer; 0.125 if float32 is sent as 4-bit floats.
    max_fragments
        Largest number of fragments; null for no limit.
    update_s_per_byte
        Seconds of a worker's outer step for each byte of a layer, without the network: computing the change,
        the outer optimizer, and mixing. It is spread evenly over the steps of a period.
    """

    refused_as = InvalidSync

    schema_version: Literal[1] = 1
    name: Name
    layers: Annotated[tuple[OuterLayer, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    workers: Annotated[int, Field(ge=2)]
    step_s: Positive
    period_steps: Annotated[int, Field(ge=1, le=MAX_PERIOD)]
    max_delay_steps: Annotated[int, Field(ge=0)]
    links: Annotated[tuple[OuterLink, ...], Field(min_length=1)]
    cutting: Cutting = "anywhere"
    sent_fraction: Annotated[float, Field(gt=0, le=4)] = 1.0
    max_fragments: Annotated[int | None, Field(ge=1)] = None
    update_s_per_byte: NonNegative = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for kind, names in (("layer", self.layers), ("link", self.links)):
            if (twice := repeated(each.name for each in names)) is not None:
                raise ValueError(f'two {kind}s are named "{twice}"')
        if self.max_delay_steps >= self.period_steps:
            raise ValueError(
                f"max_delay_steps {self.max_delay_steps} is not less than period_steps {self.period_steps}: "
                "a fragment must be applied before it is sent again"
            )
        if self.cutting == "none" and self.max_fragments is not None:
            raise ValueError(
                'max_fragments has no effect with cutting "none", as each layer is a fragment: leave it out'
            )
        if self.size_bytes > MAX_TOTAL_BYTES:
            raise ValueError("layers have more than 2^53 bytes together")
        calls = max(self.call_s(link) for link in self.links) * len(self.layers)
        slowest = min(link.bytes_per_s for link in self.links)
        worst = calls + 2 * self.size_bytes * self.sent_fraction / slowest + self.busy_s
        if worst > MAX_TOTAL_S:
            raise ValueError(f"a period may take {worst:.3g} s, more than {MAX_TOTAL_S:g} s")
        return self

    @property
    def size_bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.size_bytes for layer in self.layers)

    @property
    def compute_s(self) -> float:
        """Compute time of a period, without the outer step."""
        return self.period_steps * self.step_s

    @property
    def busy_s(self) -> float:
        """Time of a period whose transfers are all hidden."""
        return self.compute_s + self.update_s_per_byte * self.size_bytes

    @property
    def busy_step_s(self) -> float:
        """An equal part of `busy_s` for each step."""
        return self.busy_s / self.period_steps

    def call_s(self, link: OuterLink) -> float:
        """Seconds that a ring all-reduce takes beside its bytes."""
        return 2 * (self.workers - 1) * link.latency_s

    def seconds_per_byte(self, link: OuterLink) -> float:
        """Seconds of a ring all-reduce for each byte of a layer."""
        return 2 * (self.workers - 1) / self.workers * self.sent_fraction / link.bytes_per_s


def parse_outer_sync(document: bytes | str) -> OuterSync:
    """Read an outer-sync document from JSON; raises InvalidSync with one line per fault."""
    return parse(OuterSync, document)


def load_outer_sync(path: str | Path) -> OuterSync:
    """Read an outer-sync document from a JSON file; raises InvalidSync and OSError."""
    return load(parse_outer_sync, path, InvalidSync)
