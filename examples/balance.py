"""Chooses a batch and a network for the demo: communication is to take as long as compute on this machine.

Prints the number of images in a batch and the rate of the network in Mbit/s.

With less communication, there is little to hide; with more, the network alone limits both trainings.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch

sys.path.append(str(Path(__file__).parent))
from cnn import Batches, build_model

COMPUTE_S = 0.5  # long enough that the two workers' processors have little else to do than to compute
PROBE_IMAGES, PROBE_STEPS = 24, 9
# Sending takes processor time: about so much longer does compute take while gradients are sent.
SLOWDOWN = 1.15


def main() -> None:
    """Measure two workers side by side, and print what follows."""
    if len(sys.argv) > 1:
        print(json.dumps(probe(int(sys.argv[1]))))
        return
    images = 4 * round(COMPUTE_S / (compute_s(PROBE_IMAGES) / PROBE_IMAGES) / 4)
    images = min(max(images, 8), 256)
    gradient_bits = 8 * sum(each.numel() * each.element_size() for each in build_model().parameters())
    # Two workers: each sends half of every gradient twice, so one gradient's bytes each way.
    print(images, round(gradient_bits / (SLOWDOWN * compute_s(images)) / 1e6, 1))


def compute_s(images: int) -> float:
    """Return how long an iteration's compute takes on the worker that is slower in it, in seconds."""
    command = [sys.executable, __file__, str(images)]
    probes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    durations: list[list[float]] = [json.loads(each.communicate()[0]) for each in probes]
    slower: list[float] = [max(each) for each in zip(*durations, strict=True)]
    return median(slower)


def probe(images_in_batch: int) -> list[float]:
    """Return how long one worker computes in iterations as it trains, in seconds."""
    torch.set_num_threads(1)
    model, batches = build_model(), Batches(0, images_in_batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    durations = []
    for _ in range(PROBE_STEPS):
        started = time.perf_counter()
        images, labels = batches.next()
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(model(images), labels))
        optimizer.step()
        durations.append(time.perf_counter() - started)
    return durations[1:]


if __name__ == "__main__":
    main()
