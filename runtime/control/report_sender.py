"""Reports measured iteration times under a schedule to the service, with the predicted ones."""

import threading

from pace.documents.schedule import Schedule
from pace.runtime.event_log import log

_TIMEOUT_S = 10.0

# How long, in seconds, a job that ends waits for a report to be sent.
_CLOSING_S = 1.0


class ReportSender:
    """Sends reports in its own thread, so that training never waits for the service.

    Every report is sent once. A report that cannot be sent is logged and lost.

    Parameters
    ----------
    service
        The service's address.
    job
        The name under which the service knows the schedule.
    """

    def __init__(self, service: str, job: str, api_key: str | None) -> None:
        self._service = service
        self._job = job
        self._api_key = api_key
        self._thread: threading.Thread | None = None

    def send(
        self,
        schedule: Schedule,
        *,
        measured_s: float,
        num_iterations: int,
        plain_s: float | None,
    ) -> None:
        """Send a report; returns at once.

        Parameters
        ----------
        measured_s
            Median of `num_iterations` iterations under the schedule on the slowest rank, in seconds.
        plain_s
            The same without the schedule; None if it was not measured.
        """
        self._thread = threading.Thread(
            target=self._send,
            args=(schedule, measured_s, num_iterations, plain_s),
            name="pace.report",
            daemon=True,
        )
        self._thread.start()

    def _send(
        self,
        schedule: Schedule,
        measured_s: float,
        num_iterations: int,
        plain_s: float | None,
    ) -> None:
        from pace.client import Client

        values = {"service": self._service, "job": self._job, "measured_iteration_s": measured_s}
        try:
            with Client(self._service, api_key=self._api_key, timeout_s=_TIMEOUT_S) as client:
                client.send_report(schedule, self._job, measured_s, num_iterations, plain_s)
        except Exception as error:  # a report is never a reason for training to fail
            log.debug("pace.report_not_sent", reason=f"{type(error).__name__}: {error}", **values)
        else:
            log.debug("pace.report_sent", predicted_iteration_s=schedule.predicted.iteration_s, **values)

    def close(self) -> None:
        """Wait for a short time until a report is sent."""
        if self._thread is not None:
            self._thread.join(_CLOSING_S)
