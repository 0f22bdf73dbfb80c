"""Documents of the HTTP interface for what-ifs; answers are as ``pace what-if --json`` prints them."""

from datetime import datetime

from pace.client.documents import ProfileQuestion, ResourceId
from pace.documents.base import ComputedDocument, Document
from pace.documents.schedule import Sha256
from pace.whatif import Answer, Cell, Grid


class WhatIfRequest(ProfileQuestion):
    """Body of ``POST /v1/what-if``: a profile or the identifier of a stored one, and a grid."""

    grid: Grid


class WhatIfDocument(ComputedDocument):
    """The answer, as ``pace what-if --json`` prints it."""

    profile: str
    profile_sha256: Sha256
    workers: int
    baseline: str
    throughput_unit: str
    assumptions: tuple[str, ...]
    cells: tuple[Cell, ...]
    targets: tuple[Answer, ...]


class WhatIfSummary(Document):
    """A stored what-if without its content.

    Attributes
    ----------
    id
        Derived from profile, question and version: equal requests give equal identifiers.
    """

    id: ResourceId
    profile_sha256: Sha256
    num_cells: int
    created_at: datetime


class WhatIfResource(WhatIfSummary):
    """A stored what-if."""

    what_if: WhatIfDocument
