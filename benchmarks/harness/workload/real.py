"""Small models with real compute: what replays cannot show, cores that both compute and communicate.

Their profiles are captured on the testbed itself, with all ranks computing side by side. They run at ordinary
priority (the kernel throttles real-time processes that never sleep), so the machine must have a core for each
rank and nothing else to do.
"""

import timeit
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.harness.contenders import Backend
from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.joining import join, serve
from benchmarks.harness.network.processes import Answer, answering, ranks
from benchmarks.harness.workload.replay import LEARNING_RATE, FloatArray, scale_of
from benchmarks.harness.workload.scaling import Fitted
from pace.documents.collective_costs import AllReduce
from pace.documents.profile import Profile
from pace.runtime.capture.contention import ContentionMeasurement, costs_up_to, slowest_of
from pace.runtime.profiler import Capture, Contention, horovod_network, torch_network

CAPTURED_ITERATIONS = 10
# Of one all-reduce while compute is timed beside it: about a group of these models.
BESIDE_BYTES = 1 << 20
# Of iterations, with all-reduces beside them and without.
PAIRS = 21
_PORT = 19100
CLASSES = 10


Draw = Callable[[int, torch.Generator], torch.Tensor]
"""Returns so many random examples."""


def _convolutional() -> tuple[nn.Module, Draw]:
    widths = [3, 32, 64, 128, 256, 256]
    layers: list[nn.Module] = []
    for number in range(5):
        layers += [nn.Conv2d(widths[number], widths[number + 1], 3, padding=1), nn.ReLU()]
        if number != 3:
            layers.append(nn.MaxPool2d(2))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    return model, lambda size, generator: torch.randn(size, 3, 64, 64, generator=generator)


def _encoder() -> tuple[nn.Module, Draw]:
    layers = [
        nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
        for _ in range(4)
    ]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 32, CLASSES))
    return model, lambda size, generator: torch.randn(size, 32, 256, generator=generator)


MODELS = {"cnn": _convolutional, "encoder": _encoder}
BATCH_SIZES = {"cnn": 72, "encoder": 48}


class RealModel(nn.Module):
    """A model with one batch of a rank's own; ``model(scale)`` returns the loss on the scaled batch.

    Parameters
    ----------
    rank
        Decides this rank's data. Weights start equal on all ranks.
    """

    def __init__(self, name: str, *, rank: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net, draw = MODELS[name]()
        generator = torch.Generator().manual_seed(1000 + rank)
        self.inputs = draw(BATCH_SIZES[name], generator)
        self.labels = torch.randint(0, CLASSES, (len(self.inputs),), generator=generator)
        self.names = {parameter: parameter for parameter, _ in self.named_parameters()}

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        """Run the forward pass; `scale` is a tensor of one element."""
        return cross_entropy(self.net(self.inputs * scale), self.labels)


def expected_weights(name: str, order: Sequence[str], *, workers: int, iterations: int) -> FloatArray:
    """Return all weights after plain training in one process in float64, parameters in this order."""
    models = [RealModel(name, rank=rank).double() for rank in range(workers)]
    for model in models:
        model.inputs = model.inputs.double()
    shared = models[0].net
    for model in models[1:]:
        model.net = shared
    optimizer = torch.optim.SGD(shared.parameters(), lr=LEARNING_RATE)
    for iteration in range(iterations):
        optimizer.zero_grad()
        for model in models:
            (model(torch.tensor([scale_of(iteration)])) / workers).backward()
        optimizer.step()
    weights = dict(models[0].named_parameters())
    return np.concatenate([weights[each].detach().numpy().ravel() for each in order])


def captured(
    name: str, on: Sequence[Host], allreduce: AllReduce, backends: Sequence[Backend], *, pairs: int = PAIRS
) -> Fitted:
    """Capture a model's profile on these hosts, all computing at once; that of the slowest rank counts.

    How much traffic slows compute down is measured over each backend, as its threads work on the same cores,
    in so many pairs of iterations: beside compute without any backend, as in the profile. An idle Horovod
    wakes a thousand times a second, and on cores that compute that alone takes time. The profile is captured
    before and after each of these, and the one of the median length counts: cores run faster and slower.
    """
    profiles = [_capture(name, on, allreduce)]
    contention = {}
    for backend in backends:
        contention[backend] = _contention(name, on, backend, pairs)
        profiles.append(_capture(name, on, allreduce))
    usual = sorted(profiles, key=_compute_s)[len(profiles) // 2]
    return Fitted(profile=usual, time_factor=1.0, size_factor=1.0, real=name, contention=contention)


def _compute_s(profile: Profile) -> float:
    return profile.timing.compute_s


def _capture(name: str, on: Sequence[Host], allreduce: AllReduce) -> Profile:
    with ranks(f"capture of {name}", on, _capturing, name, undisturbed=False) as group:
        profiles: list[Profile] = group.ask("capture", allreduce, len(on), timeout_s=300)
    return max(profiles, key=_compute_s)


def _contention(name: str, on: Sequence[Host], backend: Backend, pairs: int) -> Contention:
    """Measure in turns with iterations on the same hosts where no backend runs, so that drift hits both."""
    with (
        ranks(f"{name} alone", on, _alone, name, undisturbed=False) as alone,
        ranks(f"{name} beside {backend}", on, _beside_traffic, name, on, backend, undisturbed=False) as group,
    ):
        port = next(port for port in group.ask("serve") if port)
        group.ask("join", port, pairs)
        alone.ask("iterate")
        alone_s: list[list[float]] = []
        for _ in range(pairs + 1):  # the first pair does not count
            alone_s.append(alone.ask("iterate"))
            group.ask("measure")
        own: list[list[float]] = [list(times) for times in zip(*alone_s, strict=True)]
        return slowest_of(group.ask_each("found", [(times,) for times in own]))


def _iterations(rank: int, name: str) -> Callable[[], None]:
    torch.set_num_threads(1)
    model = RealModel(name, rank=rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    scale = torch.tensor([scale_of(0)])

    def iterate() -> None:
        optimizer.zero_grad()
        model(scale).backward()
        optimizer.step()

    return iterate


def _alone(rank: int, name: str) -> Answer:
    iterate = _iterations(rank, name)

    def answer(_request: str, _arguments: tuple[Any, ...]) -> float:
        return timeit.timeit(iterate, number=1)

    return answer


class _LoadedRank:
    """One rank of a contention's measurement; its public methods are the requests it answers."""

    def __init__(self, rank: int, name: str, on: Sequence[Host], backend: Backend) -> None:
        self._rank = rank
        self._on = on
        self._backend = backend
        self._iterate = _iterations(rank, name)

    def serve(self) -> int:
        """Open what the others join, on rank 0; return its port."""
        return serve(self._rank, self._on, self._backend, _PORT)

    def join(self, port: int, pairs: int) -> None:
        """Join the other ranks, and time what is to be sent."""
        join(self._rank, self._on, self._backend, port)
        self._network = torch_network() if self._backend == "torch" else horovod_network()
        self._measurement = ContentionMeasurement(
            self._network, costs_up_to(BESIDE_BYTES, self._network), pairs=pairs
        )

    def measure(self) -> None:
        """Train two iterations, with traffic beside the second."""
        for _ in range(2):
            self._measurement.begin()
            self._iterate()
            self._measurement.end()

    def found(self, alone_s: Sequence[float]) -> Contention:
        """Return this rank's factors, against compute where no backend runs."""
        return self._measurement.contention(alone_s)


def _beside_traffic(rank: int, name: str, on: Sequence[Host], backend: Backend) -> Answer:
    return answering(_LoadedRank(rank, name, on, backend))


def _capturing(rank: int, name: str) -> Answer:
    torch.set_num_threads(1)
    model = RealModel(name, rank=rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def answer(_request: str, arguments: tuple[Any, ...]) -> Profile:
        allreduce, workers = arguments
        with Capture(model, optimizer, iterations=CAPTURED_ITERATIONS) as capture:
            iteration = 0
            while not capture.finished:
                optimizer.zero_grad()
                model(torch.tensor([scale_of(iteration)])).backward()
                optimizer.step()
                capture.step()
                iteration += 1
        return capture.profile(name, workers=workers, allreduce=allreduce)

    return answer
