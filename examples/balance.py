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

COMPUTE_S = 0.25  # long enough that the two workers' processors have little else to do than to compute
PROBE_IMAGES, PROBE_STEPS = 16, 9
# Sending takes processor time: about so much longer does compute take while gradients are sent.
SLOWDOWN = 1.15


def main() -> None:
    """Measure two workers side by side, and print what follows."""
    if len(sys.argv) > 1:
        print(json.dumps(probe(int(sys.argv[1]))))
        return
    seconds_an_image = compute_s(PROBE_IMAGES) / PROBE_IMAGES
    images = batch_images(seconds_an_image)
    gradient_bytes = sum(each.numel() * each.element_size() for each in build_model().parameters())
    print(images, rate_mbit_s(gradient_bytes, images * seconds_an_image))


def batch_images(seconds_an_image: float) -> int:
    """Return how many images take about 0.25 s: a multiple of 4 from 8 to 256."""
    return min(max(4 * round(COMPUTE_S / seconds_an_image / 4), 8), 256)


def rate_mbit_s(gradient_bytes: int, compute_s: float) -> float:
    """Return the rate in Mbit/s at which all gradients are sent in the time that compute takes meanwhile.

    Each of two workers sends half of every gradient twice, so one gradient's bytes each way.
    """
    return round(8 * gradient_bytes / (SLOWDOWN * compute_s) / 1e6, 1)


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
