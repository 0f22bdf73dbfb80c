"""The parts of the check: what each one shows, in which order they run, and how long each may take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part; the module of its name in this folder has its ``run(findings, setting)``.

    Attributes
    ----------
    limit_s
        The process is ended after so long; what it had found by then is kept.
    """

    name: str
    shows: str
    limit_s: float


PARTS = (
    Part(name="machine", shows="GPU, driver, versions of torch and of what PACE needs", limit_s=40),
    Part(
        name="cuda_tests",
        shows="the tests marked cuda: two ranks on one GPU over Gloo, one over NCCL, no operation that waits",
        limit_s=130,
    ),
    Part(
        name="captures",
        shows="captured profiles of real models: predicted against plain iteration",
        limit_s=100,
    ),
    Part(name="kineto", shows="traces of the same runs through the Kineto importer", limit_s=40),
    Part(
        name="training",
        shows="two ranks on one GPU over Gloo through a limited link: DDP against PACE",
        limit_s=140,
    ),
    Part(
        name="nccl",
        shows="two ranks on one GPU over NCCL, as two hosts, through a limited link: DDP against PACE",
        limit_s=80,
    ),
    Part(name="overhead", shows="what the runtime costs where nothing is sent", limit_s=40),
    Part(name="memory", shows="peak memory of plain training, DDP and PACE", limit_s=30),
)
TOTAL_S = 590.0
"""All parts together; what is left after their limits is for starting and ending processes."""
