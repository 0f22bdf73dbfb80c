"""The service's client, with requests for predictions. Needs ``pace-scheduler[client]``."""

from collections.abc import Callable

from pace.client.http import Client
from pace.documents.steps import StepsDocument
from pace_servers.documents.prediction import PredictionOptions, ThroughputPrediction
from pace_servers.service.documents import PredictionRequest, PredictionResource


class ServersClient(Client):
    """A connection to a service with this pack."""

    def predict(
        self,
        steps: StepsDocument,
        options: PredictionOptions | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> ThroughputPrediction:
        """Let the service predict throughput, and return the same as ``pace_servers.predict``.

        Parameters
        ----------
        progress
            Called with the number of points done since the last call.

        Raises
        ------
        InvalidSteps, InvalidOptions
            If the service refuses them.
        """
        request = PredictionRequest(steps=steps, options=options or PredictionOptions())
        asked = request.model_dump(mode="json")
        prediction = self._ask("/v1/predictions", asked, PredictionResource, progress).prediction
        if prediction.steps_sha256 != steps.sha256 or prediction.options != request.options:
            self._nonsense("the answer to another question")
        return prediction
