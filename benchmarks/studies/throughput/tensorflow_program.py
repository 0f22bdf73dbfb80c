"""One process of unmodified TensorFlow training with parameter servers; needs TensorFlow and nothing of PACE.

Runs where TensorFlow 2.21 is installed (``pip install tensorflow-cpu==2.21.0``), one process for each server
and worker. The worker's compute sleeps until absolute deadlines, so that many workers fit on one machine;
variables, gradients, their transfers and updates are TensorFlow's own.
"""

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped,import-not-found,unused-ignore]  # in an environment of its own
from google.protobuf.json_format import MessageToDict

tf1 = tf.compat.v1


def build(arguments: argparse.Namespace) -> Any:
    """Return the op that trains one step: pulls, sleeps forward and backward, pushes and updates."""
    setter = tf1.train.replica_device_setter(
        ps_tasks=len(arguments.ps),
        worker_device=f"/job:worker/task:{arguments.task}",
        cluster=tf1.train.ClusterSpec({"ps": arguments.ps, "worker": arguments.workers}),
    )

    def sleeps(seconds: float) -> Any:
        def sleep(value: Any, *_: Any) -> Any:
            deadline = time.monotonic() + seconds
            time.sleep(max(deadline - time.monotonic(), 0.0))
            return np.float32(value)

        return sleep

    with tf1.device(setter):
        variables = [
            tf1.get_variable(f"layer{at}", [size // 4], tf.float32, tf1.zeros_initializer())
            for at, size in enumerate(arguments.layers)
        ]
        value = tf.constant(1.0)
        for at, variable in enumerate(variables):
            value = tf1.py_func(
                sleeps(arguments.forward_s[at]), [value, variable], tf.float32, name=f"forward{at}"
            )
            value.set_shape([])
        gradients = []
        for at, variable in reversed(list(enumerate(variables))):
            value = tf1.py_func(sleeps(arguments.backward_s[at]), [value], tf.float32, name=f"backward{at}")
            value.set_shape([])
            gradients.append((tf.fill(variable.shape, value, name=f"gradient{at}"), variable))
        return tf1.train.GradientDescentOptimizer(1e-6).apply_gradients(gradients)


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
    step = build(arguments)
    with tf1.Session(target) as session:
        if arguments.task == 0:
            session.run(tf1.global_variables_initializer())
        while len(session.run(tf1.report_uninitialized_variables())):
            time.sleep(0.1)
        # Also lets TensorFlow prepare the graph, for 50 to 150 ms: workers would start out of step otherwise,
        # and stay so.
        for _ in range(2):
            session.run(step)
        print("ready", flush=True)
        sys.stdin.readline()
        started = time.monotonic()
        ends: list[float] = []
        traces: list[dict[str, Any]] = []
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE, output_partition_graphs=True)
        while len(ends) < arguments.steps:
            if arguments.trace:
                metadata = tf1.RunMetadata()
                session.run(step, options=options, run_metadata=metadata)
                traces.append(slim(MessageToDict(metadata)))
            else:
                session.run(step)
            ends.append(time.monotonic())
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = used.ru_utime + used.ru_stime
    result = {"started_s": started, "ends_s": ends, "cpu_s": cpu_s}
    if arguments.trace:
        arguments.trace.write_text(json.dumps(traces))
    arguments.output.write_text(json.dumps(result))


def main() -> None:
    """Serve parameters until killed, or train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=("ps", "worker"), required=True)
    parser.add_argument("--task", type=int, required=True)
    parser.add_argument("--ps", nargs="+", required=True)
    parser.add_argument("--workers", nargs="+", required=True)
    parser.add_argument("--layers", type=int, nargs="+", required=True, help="bytes")
    parser.add_argument("--forward-s", type=float, nargs="+", required=True)
    parser.add_argument("--backward-s", type=float, nargs="+", required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--trace", type=Path, help="record every step and write what was recorded here")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    tf1.disable_eager_execution()
    cluster = tf1.train.ClusterSpec({"ps": arguments.ps, "worker": arguments.workers})
    server = tf1.train.Server(cluster, job_name=arguments.job, task_index=arguments.task, protocol="grpc")
    if arguments.job == "ps":
        server.join()
    train(arguments, server.target)
    os._exit(0)  # a server has no way to stop


if __name__ == "__main__":
    main()
