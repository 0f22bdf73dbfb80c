"""Parameter servers as a transport: a segment is pushed, summed by its server, and pulled.

Control messages, signs of life and the start use torch.distributed, as for all-reduces.
"""

import json
from typing import Any

import torch

from pace.documents.push_pull import PushPull
from pace.runtime.options import Mixed, ParameterServers
from pace.runtime.servers.measure import TimedExchanges, evaluate, time_exchanges
from pace.runtime.servers.transport.repeated_rounds import RepeatingTransport
from pace.runtime.transports.runs import Runs
from pace.runtime.transports.transport import After, Done, Sequencing
from pace.wire.frames import MIN_PARTITION_BYTES, FrameKind

_MOST_MEASURED_BYTES = 32 << 20
_MEASURED_TIMES = 3


class PushPullTransport(RepeatingTransport):
    """Sums tensors in the host's memory on parameter servers; see ``LinkedTransport`` for the arguments.

    Segments are matched by their number in the plan, so ranks may push in any order.
    """

    sequencing: Sequencing = "keyed"
    has_halves = False
    takes_runs = True

    def measure_exchange(self, size_bytes: int) -> PushPull | None:
        """Measure what pushes and pulls of all ranks at once cost; every rank alike, with nothing in flight.

        It assumes that links are equally fast on all hosts. None if segments are also all-reduced.

        Raises
        ------
        CommunicationFailed
            If a server or a rank is gone.
        """
        if self.sequencing != "keyed":
            return None
        with self._state:
            self._repeating = False  # exchanges of the measurement are not repeated
        times = time_exchanges(
            self._links,
            size_bytes=min(size_bytes, _MOST_MEASURED_BYTES),
            repeats=_MEASURED_TIMES,
            within_s=self._timeout_s,
            meet=self._meet,
        )
        mine = [times.small_s, times.large_s, times.parts_s]
        all_ = [json.loads(each) for each in self.gather(json.dumps(mine).encode())]
        slowest = [[max(column) for column in zip(*rows, strict=True)] for rows in zip(*all_, strict=True)]
        found = evaluate(TimedExchanges(times.share_bytes, *slowest), self.num_servers)
        servers, colocated = self.num_servers, self._server is not None
        # The rate with which the cost document gives this time for each byte.
        busy = (servers + self.size - 2) / servers if colocated else max(1.0, self.size / servers)
        self.prepare(self._prepared[0], **self._prepared[1])
        return PushPull(
            servers=servers,
            colocated=colocated,
            worker_bytes_per_s=busy / found.seconds_per_byte,
            partition_s=found.partition_s,
            round_trip_s=found.round_trip_s,
            min_partition_bytes=MIN_PARTITION_BYTES,
        )

    def allreduce(
        self,
        segment: torch.Tensor,
        name: str,
        done: Done,
        after: After | None = None,
        runs: Runs | None = None,
    ) -> Any:
        """Start to push, sum and pull a segment; see ``Transport``."""
        if name not in self._exchanges:  # what is all-reduced, or measured and in no plan
            return super().allreduce(segment, name, done, after)
        self._start(segment, name, FrameKind.PUSH, done, after, runs)
        return None


class MixedTransport(PushPullTransport):
    """Sums some gradients on parameter servers and all-reduces the others, in one round.

    All-reduces have the same order on all ranks. Pushed segments are matched by their numbers.
    """

    sequencing: Sequencing = "decision"

    def _take_options(self, options: ParameterServers) -> None:
        assert isinstance(options, Mixed)
        self.pushed = frozenset(options.pushed or ())
