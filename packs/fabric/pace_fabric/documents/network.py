"""The network document: hosts, what each direction of their links carries, and who plays which part."""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pace.documents.base import Document, repeated
from pace.documents.profile import Name

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RateChange(Document):
    """New rates of a host's link from `at_s` on; a rate that is left out does not change."""

    at_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    up_bytes_per_s: Rate | None = None
    down_bytes_per_s: Rate | None = None


class FabricHost(Document):
    """A host and the two directions of its link, in bytes per second."""

    name: Name
    up_bytes_per_s: Rate
    down_bytes_per_s: Rate
    changes: tuple[RateChange, ...] = ()

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if any(b.at_s <= a.at_s for a, b in pairwise(self.changes)):
            raise ValueError(f'host "{self.name}": changes must be in order of at_s, each moment once')
        return self


class FabricNetwork(Document):
    """Hosts and their parts.

    Attributes
    ----------
    server, replica
        Names of the hosts that hold the model and its replica; null for no replica.
    aggregators, distributors
        Hosts that may add updates on the way, and send the model on. They may be workers.
    """

    schema_version: Literal[1] = 1
    hosts: Annotated[tuple[FabricHost, ...], Field(min_length=1)]
    server: Name
    replica: Name | None = None
    aggregators: tuple[Name, ...] = ()
    distributors: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _hosts_are_known(self) -> Self:
        if (twice := repeated(host.name for host in self.hosts)) is not None:
            raise ValueError(f'host "{twice}" is there twice')
        names = {host.name for host in self.hosts}
        parts: list[tuple[str, tuple[str, ...]]] = [
            ("server", (self.server,)),
            ("replica", (self.replica,) if self.replica else ()),
            ("aggregator", self.aggregators),
            ("distributor", self.distributors),
        ]
        for part, members in parts:
            for name in members:
                if name not in names:
                    raise ValueError(f'{part} "{name}" is no host of the network')
            if len(set(members)) < len(members):
                raise ValueError(f"{part}: a host is named twice")
        if self.replica == self.server:
            raise ValueError("the replica must be another host than the server")
        return self
