"""TensorFlow with parameter servers on hosts of the testbed: profiled with traces, measured without."""

import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.network.hosts import Link, hosts
from benchmarks.harness.network.rates import measure_rates
from benchmarks.harness.training.tensorflow_peer import train_tensorflow
from benchmarks.studies.throughput.shapes import ModelShape
from pace.documents.steps import StepsDocument
from pace_servers.tf_run_metadata import read_tf_run_metadata

# With this, a receiver lets every transfer through at once: the paper's "flow control disabled".
WINDOW_OFF = "grpc.http2.bdp_probe=0,grpc.http2.lookahead_bytes=2147483647"

# Also lets TensorFlow prepare the graph, for 50 to 150 ms: workers would start, and stay, out of step
# otherwise.
WARM_UP_STEPS = 2


def run_tensorflow(
    python: Path,
    model: ModelShape,
    *,
    workers: int,
    servers: int,
    link: Link,
    steps: int,
    trace: bool = False,
    window_off: bool = True,
    order: str = "none",
    hold: str = "received",
) -> list[dict[str, Any]]:
    """Train asynchronously on new hosts; return what each worker wrote."""
    document = {
        "forward_before_s": 0.0,
        "backward_after_s": 0.0,
        "stages": [
            {"sizes": [size], "forward_s": forward_s, "backward_s": backward_s}
            for size, forward_s, backward_s in zip(
                model.layers, model.forward_s, model.backward_s, strict=True
            )
        ],
    }
    with hosts([link] * (servers + workers)) as made:
        return train_tensorflow(
            python,
            made[:servers],
            made[servers:],
            document,
            steps=steps,
            trace=trace,
            warm_up=WARM_UP_STEPS,
            slack_s=0.0,
            undisturbed=False,
            environment={"TF_GRPC_DEFAULT_OPTIONS": WINDOW_OFF} if window_off else {},
            order=order,
            hold=hold,
        )


class TensorFlowSystem:
    """Measures TensorFlow; see ``compare.System``.

    Parameters
    ----------
    python
        An interpreter that has TensorFlow.
    """

    def __init__(self, python: Path, link: Link, *, window_off: bool) -> None:
        fair = ", fair links" if link.fair else ""
        self.name = f"tensorflow, window {'off' if window_off else 'default'}{fair}"
        self._python, self._link, self._window_off = python, link, window_off
        self.bytes_per_s = _measured_rate(link)

    def _run(
        self, shape: ModelShape, *, workers: int, servers: int, steps: int, trace: bool = False
    ) -> list[dict[str, Any]]:
        return run_tensorflow(
            self._python,
            shape,
            workers=workers,
            servers=servers,
            link=self._link,
            steps=steps,
            trace=trace,
            window_off=self._window_off,
        )

    def profile(self, shape: ModelShape, servers: int, steps: int) -> StepsDocument:
        """Record a lone worker's steps."""
        traces = self._run(shape, workers=1, servers=servers, steps=steps, trace=True)[0]["traces"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{shape.name}.json"
            path.write_text(json.dumps(traces))
            return read_tf_run_metadata([path], bytes_per_s=self.bytes_per_s)

    def ends_s(
        self, shape: ModelShape, workers: int, servers: int, steps: int, _seed: int
    ) -> Sequence[Sequence[float]]:
        """Train and return when each worker's steps ended."""
        found = self._run(shape, workers=workers, servers=servers, steps=steps)
        return [result["ends_s"] for result in found]


def _measured_rate(link: Link) -> float:
    """Return bytes of payload a second, half way between a link used both ways and one way.

    Both happen in training, and acknowledgements of the other way are 2 % of a link.
    """
    with hosts([link] * 2) as made:
        found = [measure_rates(made, senders=senders)[0] for senders in (None, (0,)) for _ in range(3)]
    return (statistics.median(found[:3]) + statistics.median(found[3:])) / 2 * 1e6 / 8
