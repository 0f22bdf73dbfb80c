"""The process that talks to a Dask cluster for the service, in frames that cannot execute code.

Dask's client unpickles what workers and the scheduler send. It does so here, in a process that has neither
the service's database nor its secrets in its memory or environment. The two exchange JSON and plain bytes.
"""

import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from pace.api.errors import WorkerFailed
from pace.api.questions.all_kinds import answer_question
from pace.api.workers.dask_cluster import DaskCluster, DaskJobs
from pace.api.workers.dask_executor import Pipe, receive, send
from pace.errors import PaceError

_TELL_EVERY_S = 0.2


class _Bridge:
    def __init__(self, address: str, service: Pipe) -> None:
        self._cluster = DaskCluster(address)
        self._jobs = DaskJobs(self._cluster)
        self._service = service
        self._lock = threading.Lock()
        self._ended: dict[str, threading.Event] = {}

    def serve(self) -> None:
        self._cluster.start()
        threading.Thread(target=self._keep_telling_capacity, daemon=True).start()
        while True:
            told, document = receive(self._service)
            if told["do"] == "run":
                self._ended[told["job"]] = threading.Event()
                threading.Thread(target=self._run, args=(told, document), daemon=True).start()
            elif told["job"] in self._ended:
                self._ended[told["job"]].set()

    def _tell(self, told: dict[str, Any], document: bytes = b"") -> None:
        with self._lock:
            send(self._service, told, document)

    def _tell_capacity(self) -> None:
        self._tell({"is": "capacity", "threads": self._cluster.num_threads})

    def _keep_telling_capacity(self) -> None:
        wait = threading.Event()
        while not wait.wait(_TELL_EVERY_S):
            self._tell_capacity()

    def _run(self, told: dict[str, Any], document: bytes) -> None:
        job = told["job"]

        def progress(value: Any) -> None:
            if type(value) is int:
                self._tell({"is": "progress", "job": job, "value": value})

        try:
            result = self._jobs.run(
                job,
                self._ended[job],
                answer_question,
                (told["kind"], document, told["options"]),
                purpose=told["purpose"],
                timeout_s=told["timeout_s"],
                memory_bytes=told["memory_bytes"],
                priority=told["priority"],
                progress=progress if told["progress"] else None,
            )
            if type(result) is not bytes:
                raise WorkerFailed(f"a worker answered with {type(result).__name__} instead of bytes")
            self._tell({"is": "returned", "job": job}, result)
        except PaceError as error:
            # First: where the cluster is lost, nothing is to be tried again before it is back.
            self._tell_capacity()
            self._tell({"is": "raised", "job": job, "error": type(error).__name__, "detail": str(error)})
        except Exception as error:  # whatever else Dask or a worker raises: the service is told its name
            self._tell({"is": "raised", "job": job, "error": "WorkerFailed", "detail": type(error).__name__})
        finally:
            del self._ended[job]


def main() -> None:
    """Serve the process that started this one, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _Bridge(sys.argv[1], Connection(int(sys.argv[2]))).serve()
    except (EOFError, OSError):
        os._exit(0)  # threads may wait for the cluster


if __name__ == "__main__":
    main()
