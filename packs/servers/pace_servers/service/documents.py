"""Documents of the HTTP interface for predictions of throughput."""

from datetime import datetime

from pace.client.documents import ResourceId
from pace.documents.base import Document
from pace.documents.schedule import Sha256
from pace.documents.steps import StepsDocument
from pace_servers.documents.prediction import PredictionOptions, ThroughputPrediction


class PredictionRequest(Document):
    """Body of ``POST /v1/predictions``."""

    steps: StepsDocument
    options: PredictionOptions = PredictionOptions()


class PredictionSummary(Document):
    """A stored prediction without its content.

    Attributes
    ----------
    id
        Derived from steps, options and version: equal requests give equal identifiers.
    """

    id: ResourceId
    name: str
    steps_sha256: Sha256
    num_points: int
    created_at: datetime


class PredictionResource(PredictionSummary):
    """A stored prediction."""

    prediction: ThroughputPrediction
