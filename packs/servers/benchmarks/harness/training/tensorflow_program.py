"""One process of unmodified TensorFlow training with parameter servers, given layers and sleeps.

Runs where TensorFlow 2.21 is installed (``pip install tensorflow-cpu==2.21.0``), one process for each server
and worker. Of this project it needs the emulated stream alone, which needs nothing else. Variables,
gradients, their transfers over gRPC, updates on servers and, with ``--sync``, accumulators and the queue of
tokens (``SyncReplicasOptimizer``) are TensorFlow's own.
"""

import argparse
import json
import os
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[5]))

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped,import-not-found,unused-ignore]  # in an environment of its own
from google.protobuf.json_format import MessageToDict

from benchmarks.harness.workload.stream import Stream

tf1 = tf.compat.v1

# A power of two, so that sums of updates are exact.
LEARNING_RATE = 2.0**-10


class TensorFlowWorker:
    """The graph of one worker.

    Attributes
    ----------
    step
        Trains one step: pulls, computes forward and backward, pushes; with ``--sync`` waits for its token.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._stream = Stream(arguments.slack_s)
        self._chief = arguments.task == 0
        self._order, self._hold = arguments.order, arguments.hold
        self._device = f"/job:worker/task:{arguments.task}"
        model = json.loads(arguments.model.read_text())
        setter = tf1.train.replica_device_setter(
            ps_tasks=len(arguments.ps),
            worker_device=self._device,
            cluster=tf1.train.ClusterSpec({"ps": arguments.ps, "worker": arguments.workers}),
        )
        self._sync: Any = None
        with tf1.device(setter):
            optimizer: Any = tf1.train.GradientDescentOptimizer(LEARNING_RATE)
            global_step = None
            if arguments.sync:
                global_step = tf1.train.get_or_create_global_step()
                workers = len(arguments.workers)
                optimizer = self._sync = tf1.train.SyncReplicasOptimizer(
                    optimizer, replicas_to_aggregate=workers, total_num_replicas=workers
                )
            gradients, end = self._compute(model)
            update = optimizer.apply_gradients(gradients, global_step=global_step)
            self.step = [update, end] if end is not None else [update]
            self.first = gradients[0][1][:1]
            self._initial = tf1.global_variables_initializer()
            if self._sync is not None:
                # No tokens to begin with: every step waits for the update that it is part of.
                self._tokens = self._sync.get_init_tokens_op(num_tokens=0)
                self._queue_runner = self._sync.get_chief_queue_runner()

    def _op(self, name: str, seconds: float, inputs: list[Any]) -> Any:
        def run(value: Any, *_: Any) -> Any:
            self._stream.end(name, self._stream.begin(), seconds)
            return np.float32(value)

        value = tf1.py_func(run, inputs, tf.float32, name=name)
        value.set_shape([])
        return value

    def _pulled(self, variables: list[Any]) -> dict[str, Any]:
        """Return by name what is pulled of each variable: itself, or a copy that waits for its turn.

        A copy is made on the variable's server. It waits until the server has the one before it ready to be
        sent (``sent``), or until this worker has it (``received``). The latter needs a stateful op that takes
        the copy itself: TensorFlow's optimizer moves an edge from a `no_op` to the server, and a control edge
        waits for an empty tensor beside the copy.
        """
        if self._order == "none":
            return {variable.name: variable for variable in variables}
        ordered = list(variables)
        if self._order == "reverse":
            ordered.reverse()
        elif self._order == "random":
            random.Random(1).shuffle(ordered)
        pulled: dict[str, Any] = {}
        before: dict[str, Any] = {}
        for variable in ordered:
            waits = [before[variable.device]] if variable.device in before else []
            with tf1.device(variable.device), tf1.control_dependencies(waits):
                copy = before[variable.device] = pulled[variable.name] = tf.identity(variable)
            if self._hold == "received":
                with tf1.device(self._device):
                    before[variable.device] = tf1.py_func(_nothing, [copy], tf.float32, name="received")
        return pulled

    def _compute(self, model: dict[str, Any]) -> tuple[list[tuple[Any, Any]], Any]:
        """Return gradients with their variables, and what ends after the last of them, if anything does."""
        value = tf.constant(1.0)
        if model["forward_before_s"]:
            value = self._op("forward_before", model["forward_before_s"], [value])
        stages = []
        for at, stage in enumerate(model["stages"]):
            variables = [
                tf1.get_variable(
                    f"layer{at}" + (f"_{number}" if number else ""),
                    [size // 4],
                    tf.float32,
                    tf1.zeros_initializer(),
                )
                for number, size in enumerate(stage["sizes"])
            ]
            stages.append((stage, variables))
        pulled = self._pulled([variable for _, variables in stages for variable in variables])
        for at, (stage, variables) in enumerate(stages):
            inputs = [value, *(pulled[variable.name] for variable in variables)]
            value = self._op(f"forward{at}", stage["forward_s"], inputs)
        gradients = []
        for at, (stage, variables) in reversed(list(enumerate(stages))):
            value = self._op(f"backward{at}", stage["backward_s"], [value])
            for variable in variables:
                gradients.append((tf.fill(variable.shape, value, name=f"gradient{at}"), variable))
        after_s = model["backward_after_s"]
        return gradients, self._op("backward_after", after_s, [value]) if after_s else None

    def begin(self, session: Any) -> None:
        """Initialize what this worker initializes, and wait for what the first one does."""
        if self._chief:
            session.run(self._initial)
        while len(session.run(tf1.report_uninitialized_variables(tf1.global_variables()))):
            time.sleep(0.1)
        if self._sync is not None:
            session.run(self._sync.chief_init_op if self._chief else self._sync.local_step_init_op)
            if self._chief:
                self._queue_runner.create_threads(session, daemon=True, start=True)
                session.run(self._tokens)


def _nothing(_: Any) -> Any:
    return np.float32(0)


def slim(metadata: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a prediction does not read: attributes of nodes, memory, and function libraries."""
    graphs = [
        {
            "node": [
                {key: node[key] for key in ("name", "op", "input", "device") if key in node}
                | (
                    {"attr": {"tensor_name": node["attr"]["tensor_name"]}}
                    if "tensor_name" in node.get("attr", {})
                    else {}
                )
                for node in graph.get("node", [])
            ]
        }
        for graph in metadata.get("partitionGraphs", [])
    ]
    wanted = ("nodeName", "allStartMicros", "allEndRelMicros", "opStartRelMicros", "opEndRelMicros")
    devices = [
        {
            "device": device["device"],
            "nodeStats": [
                {key: row[key] for key in (*wanted, "timelineLabel") if key in row} | size_of(row)
                for row in device.get("nodeStats", [])
            ],
        }
        for device in metadata.get("stepStats", {}).get("devStats", [])
    ]
    return {"stepStats": {"devStats": devices}, "partitionGraphs": graphs}


def size_of(row: dict[str, Any]) -> dict[str, Any]:
    """Keep of a row's outputs how many bytes were asked for; only transfers' are wanted."""
    if row.get("nodeName") != "RecvTensor":
        return {}
    tensors = [output.get("tensorDescription", {}) for output in row.get("output", [])]
    kept = [tensor.get("allocationDescription", {}).get("requestedBytes") for tensor in tensors]
    return {
        "output": [
            {"tensorDescription": {"allocationDescription": {"requestedBytes": size}}}
            for size in kept
            if size is not None
        ]
    }


def train(arguments: argparse.Namespace, target: str) -> None:
    """Train, and write when steps ended, or what TensorFlow recorded of them."""
    worker = TensorFlowWorker(arguments)
    with tf1.Session(target) as session:
        worker.begin(session)
        for _ in range(arguments.warm_up):
            session.run(worker.step)
        print("ready", flush=True)
        sys.stdin.readline()
        ends: list[float] = []
        traces: list[dict[str, Any]] = []
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE, output_partition_graphs=True)
        while len(ends) < arguments.steps:
            if arguments.trace:
                metadata = tf1.RunMetadata()
                session.run(worker.step, options=options, run_metadata=metadata)
                traces.append(slim(MessageToDict(metadata)))
            else:
                session.run(worker.step)
            ends.append(time.monotonic())
        weight = float(session.run(worker.first)[0])
        used = resource.getrusage(resource.RUSAGE_SELF)
        result = {"ends_s": ends, "weight": weight, "cpu_s": used.ru_utime + used.ru_stime}
        arguments.output.write_text(json.dumps(result | {"traces": traces}))
        print("done", flush=True)
        sys.stdin.readline()  # others may still train
    os._exit(0)  # a server has no way to stop


def main() -> None:
    """Serve parameters until killed, or train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=("ps", "worker"), required=True, help="role of this process")
    parser.add_argument("--task", type=int, required=True, help="number of this process in its role")
    parser.add_argument("--ps", nargs="+", required=True, help="HOST:PORT of every parameter server")
    parser.add_argument("--workers", nargs="+", required=True, help="HOST:PORT of every worker")
    parser.add_argument("--model", type=Path, required=True, help="stages with sizes and times, as JSON")
    parser.add_argument("--steps", type=int, required=True, help="number of training steps")
    parser.add_argument("--warm-up", type=int, required=True, help="steps before the worker is ready")
    parser.add_argument(
        "--slack-s", type=float, required=True, help="longest gap in seconds that the emulated stream skips"
    )
    parser.add_argument("--sync", action="store_true", help="wait for all workers in every step")
    parser.add_argument(
        "--order",
        choices=("none", "tic", "reverse", "random"),
        default="none",
        help="order of parameters at servers: TensorFlow's own, by layer, its opposite, or random (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--hold",
        choices=("sent", "received"),
        default="received",
        help="hold a parameter until the one before it is ready or received (default: %(default)s)",
    )
    parser.add_argument("--trace", action="store_true", help="record every step of the first worker")
    parser.add_argument("--output", type=Path, help="file for the result (JSON; default: none)")
    arguments = parser.parse_args()
    arguments.trace &= arguments.task == 0
    tf1.disable_eager_execution()
    cluster = tf1.train.ClusterSpec({"ps": arguments.ps, "worker": arguments.workers})
    server = tf1.train.Server(cluster, job_name=arguments.job, task_index=arguments.task, protocol="grpc")
    if arguments.job == "ps":
        server.join()
    train(arguments, server.target)


if __name__ == "__main__":
    main()
