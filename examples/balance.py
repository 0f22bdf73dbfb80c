"""Chooses a batch and a network for the demo: communication is to take as long as compute on this machine.

Prints the number of images in a batch and the rate of the network in Mbit/s.
"""

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


def main() -> None:
    """Measure two workers side by side, and print what follows."""
    if sys.argv[1:] == ["probe"]:
        print(probe())
        return
    command = [sys.executable, __file__, "probe"]
    probes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    per_image_s = max(float(each.communicate()[0]) for each in probes)
    images = min(max(4 * round(COMPUTE_S / per_image_s / 4), 8), 256)
    gradient_bits = 8 * sum(each.numel() * each.element_size() for each in build_model().parameters())
    # Two workers: each sends half of every gradient twice, so one gradient's bytes each way.
    print(images, round(gradient_bits / (images * per_image_s) / 1e6, 1))


def probe() -> float:
    """Return how long one worker computes for one image in an iteration as it trains, in seconds."""
    torch.set_num_threads(1)
    model, batches = build_model(), Batches(0, PROBE_IMAGES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    durations = []
    for _ in range(PROBE_STEPS):
        started = time.perf_counter()
        images, labels = batches.next()
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(model(images), labels))
        optimizer.step()
        durations.append(time.perf_counter() - started)
    return median(durations[1:]) / PROBE_IMAGES


if __name__ == "__main__":
    main()
