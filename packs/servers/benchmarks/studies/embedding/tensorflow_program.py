"""One process of TensorFlow training with embedding tables on its own parameter server.

Runs where TensorFlow 2.21 is installed (``pip install tensorflow-cpu==2.21.0``), one process for the server
and each worker, and needs nothing of this project. A worker looks up the distinct keys of its batch with
``tf.nn.embedding_lookup_sparse``, whose gather runs on the server, and sends back the rows' gradients. The
server applies updates as they arrive. It also holds the layers of a DLRM, as TensorFlow has it; the single
layer of the other model is each worker's own.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped,import-not-found,unused-ignore]  # in an environment of its own

tf1 = tf.compat.v1

SERVER = "/job:ps/task:0"
LEARNING_RATE = 0.1


class TableWorker:
    """The graph of one worker.

    Attributes
    ----------
    step
        Trains one step on the batch that is fed.
    """

    def __init__(self, arguments: argparse.Namespace, batches: dict[str, Any]) -> None:
        own = f"/job:worker/task:{arguments.task}"
        self._chief = arguments.task == 0
        self._batches = batches
        with tf1.device(own):
            self._inputs = {
                name: tf1.placeholder(array.dtype, array.shape[1:], name=name)
                for name, array in batches.items()
            }
            pooled = self._pooled(arguments.rows, arguments.width)
            if arguments.model == "dlrm":
                logits = self._dlrm(pooled, arguments.width)
            else:
                logits = _layer(tf.concat(pooled, axis=1), 1, f"own{arguments.task}", own)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=self._inputs["clicks"], logits=logits)
            optimizer = tf1.train.GradientDescentOptimizer(LEARNING_RATE)
            self.step = optimizer.minimize(tf.reduce_mean(losses))
        on_server = [each for each in tf1.global_variables() if each.device.startswith(SERVER)]
        here = [each for each in tf1.global_variables() if not each.device.startswith(SERVER)]
        self._begin = tf1.variables_initializer(on_server + here if self._chief else here)
        self._missing = tf1.report_uninitialized_variables(on_server)

    def _pooled(self, rows: int, width: int) -> list[Any]:
        """Return the sums of the rows of every bag, for each table: (examples, width)."""
        _, tables, examples, bag = self._batches["keys"].shape
        places = np.argwhere(np.ones((examples, bag)))
        found = []
        for number in range(tables):
            with tf1.device(SERVER):
                table = tf1.get_variable(
                    f"table{number}", [rows, width], tf.float32, tf1.random_normal_initializer()
                )
            keys = tf.reshape(self._inputs["keys"][number], [-1])
            bags = tf.SparseTensor(places, keys, (examples, bag))
            found.append(tf.nn.embedding_lookup_sparse(table, bags, None, combiner="sum"))
        return found

    def _dlrm(self, pooled: list[Any], width: int) -> Any:
        below = self._inputs["dense"]
        for number, outputs in enumerate((256, width)):
            below = tf.nn.relu(_layer(below, outputs, f"below{number}", SERVER))
        all_of = tf.stack([below, *pooled], axis=1)
        products = tf.matmul(all_of, all_of, transpose_b=True)
        size = len(pooled) + 1
        left, right = np.tril_indices(size, -1)
        pairs = tf.gather(tf.reshape(products, [-1, size * size]), left * size + right, axis=1)
        hidden = tf.nn.relu(_layer(tf.concat([below, pairs], axis=1), 256, "above0", SERVER))
        return _layer(hidden, 1, "above1", SERVER)

    def begin(self, session: Any) -> None:
        """Initialize what this worker initializes, and wait for what the first one does."""
        session.run(self._begin)
        while len(session.run(self._missing)):
            time.sleep(0.1)

    def feeds(self) -> list[dict[Any, Any]]:
        """Return what is fed in each step."""
        count = len(self._batches["keys"])
        return [
            {self._inputs[name]: array[number] for name, array in self._batches.items()}
            for number in range(count)
        ]


def _layer(inputs: Any, outputs: int, name: str, place: str) -> Any:
    """Return a layer of an input, whose parameters are on a device."""
    with tf1.device(place):
        weight = tf1.get_variable(f"{name}/weight", [inputs.shape[1], outputs], tf.float32)
        bias = tf1.get_variable(f"{name}/bias", [outputs], tf.float32, tf1.zeros_initializer())
    return tf.matmul(inputs, weight) + bias


def train(arguments: argparse.Namespace, target: str) -> None:
    """Train, and print the seconds of the steps after the warm-up, and the processor time of all."""
    with np.load(arguments.batches) as file:
        worker = TableWorker(arguments, dict(file))
    feeds = worker.feeds()
    seen = tf1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{arguments.task}"])
    with tf1.Session(target, config=seen) as session:
        worker.begin(session)
        print("ready", flush=True)
        sys.stdin.readline()
        start_s, before_s = 0.0, time.process_time()
        for number, feed in enumerate(feeds):
            if number == arguments.warm_up:
                start_s = time.perf_counter()
            session.run(worker.step, feed)
        told = {"seconds": time.perf_counter() - start_s, "processor_s": time.process_time() - before_s}
        print(json.dumps(told), flush=True)
        sys.stdin.readline()  # others may still train
    os._exit(0)  # a server has no way to stop


def main() -> None:
    """Serve parameters until killed, or train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=("ps", "worker"), required=True, help="role of this process")
    parser.add_argument("--task", type=int, required=True, help="number of this process in its role")
    parser.add_argument("--server", required=True, help="HOST:PORT of the parameter server")
    parser.add_argument("--workers", nargs="+", required=True, help="HOST:PORT of every worker")
    parser.add_argument("--model", choices=("linear", "dlrm"), required=True, help="model over the tables")
    parser.add_argument("--rows", type=int, required=True, help="rows of each table")
    parser.add_argument("--width", type=int, required=True, help="numbers of a row")
    parser.add_argument("--batches", type=Path, help="arrays of all batches (npz), for a worker")
    parser.add_argument(
        "--warm-up",
        type=int,
        default=0,
        help="number of warm-up steps, which are not timed (default: %(default)s)",
    )
    arguments = parser.parse_args()
    tf1.disable_eager_execution()
    cluster = tf1.train.ClusterSpec({"ps": [arguments.server], "worker": arguments.workers})
    # One thread for the work inside an op, as all contenders have.
    threads = tf1.ConfigProto(intra_op_parallelism_threads=1)
    server = tf1.train.Server(
        cluster, job_name=arguments.job, task_index=arguments.task, protocol="grpc", config=threads
    )
    if arguments.job == "ps":
        server.join()
    train(arguments, server.target)


if __name__ == "__main__":
    main()
