"""Who competes: DDP, Horovod and PACE, each set up as its own documentation says.

Gradients are scaled to fit the testbed (``scaling``). Peers' sizes in bytes (DDP's 1 and 25 MiB buckets,
Horovod's 128 MiB) are scaled by the same factor, so that the same gradients share a bucket as in the model
that the user has: left alone, one bucket would hold a whole scaled model and nothing would overlap.
"""

from dataclasses import dataclass, field
from typing import Literal

from pace.documents.options import Options
from pace.runtime.control.options import Mode
from pace.runtime.transports.transport import Order

MEBIBYTE = 1 << 20
DDP_FIRST_MIB, DDP_MIB = 1.0, 25.0
HOROVOD_THRESHOLD_BYTES = 128 * MEBIBYTE

# Candidates for DDP's best bucket size, as sizes that an unscaled model would have.
DDP_SWEEP_MIB = (1.0, 2.5, 6.0, 12.0, 25.0, 60.0)

Backend = Literal["torch", "horovod"]
Framework = Literal["lightning", "accelerate"]
Kind = Literal["ddp", "ddp-sweep", "horovod", "pace", "bytescheduler", "hsdp-fifo", "hsdp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to train.

    Attributes
    ----------
    peer
        Whether it counts as what users run today, and PACE is compared with it.
    environment
        Set before Horovod starts; `HOROVOD_FUSION_THRESHOLD` is set beside it where it is not named.
    options, order, mode
        For PACE: how its schedule is made, who decides what is sent next, and with or without a barrier.
    predicted_at
        The backend whose all-reduce cost predicts it, where that is not its own.
    tuning_iterations
        Iterations before anything is measured, for contenders that tune themselves.
    attached
        Whether the model is in DDP, with PACE attached to it.
    framework
        Whose training loop runs, and who wraps the model in DDP; None for a loop of our own.
    sharded
        Whether updates are sharded, and gradients and parameters sent in two halves.
    """

    name: str
    label: str
    backend: Backend
    kind: Kind
    peer: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    options: Options | None = None
    order: Order = "auto"
    mode: Mode = "overlap"
    predicted_at: Backend | None = None
    tuning_iterations: int = 0
    attached: bool = False
    framework: Framework | None = None
    sharded: bool = False


# Horovod's defaults for autotuning need some 1,300 iterations; these let it finish in one setting's time.
_AUTOTUNE = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "8",
}

_OPTIMAL = Options()
_HALVES = Options(exchange="sharded")
_PAPER = Options(fusion="paper")

CONTENDERS = (
    Contender(name="ddp", label="DDP", backend="torch", kind="ddp", peer=True),
    Contender(name="ddp-best", label="DDP, best bucket size", backend="torch", kind="ddp-sweep", peer=True),
    Contender(name="horovod", label="Horovod", backend="horovod", kind="horovod", peer=True),
    Contender(
        name="horovod-unfused",
        label="Horovod, tensor by tensor",
        backend="horovod",
        kind="horovod",
        peer=True,
        environment={"HOROVOD_FUSION_THRESHOLD": "0"},
        # A cycle negotiates all tensors that wait, and they then follow each other as fast as Gloo is; the
        # cost over Horovod is that of a call by itself, which waits for a cycle.
        predicted_at="torch",
    ),
    Contender(
        name="horovod-autotuned",
        label="Horovod, autotuned",
        backend="horovod",
        kind="horovod",
        peer=True,
        environment=_AUTOTUNE,
        tuning_iterations=48,
    ),
    Contender(
        name="bytescheduler",
        label="ByteScheduler's policy",
        backend="torch",
        kind="bytescheduler",
        order="priority",
    ),
    Contender(
        name="pace",
        label="PACE on torch, defaults",
        backend="torch",
        kind="pace",
        options=_OPTIMAL,
        mode="auto",
        tuning_iterations=24,
    ),
    Contender(
        name="pace-static",
        label="PACE on torch, static",
        backend="torch",
        kind="pace",
        options=_OPTIMAL,
        order="static",
    ),
    Contender(
        name="pace-ddp",
        label="PACE under DDP, static",
        backend="torch",
        kind="pace",
        options=_OPTIMAL,
        order="static",
        attached=True,
    ),
    Contender(
        name="pace-adaptive",
        label="PACE on torch, adaptive",
        backend="torch",
        kind="pace",
        options=_OPTIMAL,
        order="adaptive",
    ),
    Contender(
        name="pace-paper",
        label="PACE on torch, paper's fusion",
        backend="torch",
        kind="pace",
        options=_PAPER,
        order="static",
    ),
    Contender(
        name="pace-horovod",
        label="PACE on Horovod",
        backend="horovod",
        kind="pace",
        options=_OPTIMAL,
        order="adaptive",
    ),
    Contender(
        name="pace-horovod-static",
        label="PACE on Horovod, static",
        backend="horovod",
        kind="pace",
        options=_OPTIMAL,
        order="static",
    ),
    Contender(
        name="pace-horovod-paper",
        label="PACE on Horovod, paper's fusion",
        backend="horovod",
        kind="pace",
        options=_PAPER,
        order="adaptive",
    ),
    Contender(
        name="pace-sharded",
        label="PACE on torch, two halves",
        backend="torch",
        kind="pace",
        options=_HALVES,
        order="static",
        sharded=True,
    ),
    Contender(
        name="pace-horovod-sharded",
        label="PACE on Horovod, two halves",
        backend="horovod",
        kind="pace",
        options=_HALVES,
        order="adaptive",
        sharded=True,
    ),
)

# On two replicas of two shards each, in settings of their own. Torch's own all-reduce waits for every sum on
# CPUs: its order, without that wait, is what the runtime's is compared with.
HSDP = (
    Contender(
        name="hsdp-fifo",
        label="HSDP, all-reduces in FIFO order",
        backend="torch",
        kind="hsdp-fifo",
        peer=True,
        order="static",
        mode="barrier",
    ),
    Contender(
        name="hsdp-fifo-overlap",
        label="HSDP, FIFO order, updates as under PACE",
        backend="torch",
        kind="hsdp-fifo",
        peer=True,
        order="static",
    ),
    Contender(
        name="pace-hsdp",
        label="PACE under HSDP, static",
        backend="torch",
        kind="hsdp",
        options=_OPTIMAL,
        order="static",
    ),
)

# In the loops of frameworks that wrap the model in DDP themselves, each as its documentation says.
FRAMEWORKS = (
    Contender(
        name="lightning",
        label="Lightning",
        backend="torch",
        kind="ddp",
        peer=True,
        framework="lightning",
    ),
    Contender(
        name="pace-lightning",
        label="PACE in Lightning, static",
        backend="torch",
        kind="pace",
        options=_OPTIMAL,
        order="static",
        framework="lightning",
    ),
    Contender(
        name="accelerate",
        label="Accelerate",
        backend="torch",
        kind="ddp",
        peer=True,
        framework="accelerate",
    ),
    Contender(
        name="pace-accelerate",
        label="PACE in Accelerate, static",
        backend="torch",
        kind="pace",
        options=_OPTIMAL,
        order="static",
        framework="accelerate",
    ),
)

# Each framework's own default, and what PACE is under it.
FRAMEWORK_PAIRS = {
    "torch DDP": ("ddp", "pace-ddp"),
    "Lightning": ("lightning", "pace-lightning"),
    "Accelerate": ("accelerate", "pace-accelerate"),
}

BY_NAME = {contender.name: contender for contender in (*CONTENDERS, *FRAMEWORKS, *HSDP)}

# Who competes where gradients are clipped by their global norm. FSDP2 is left out: over Gloo its
# reduce-scatter moves as many bytes as an all-reduce, and parameters are gathered besides (docs/testbed.md).
CLIPPING = (
    "ddp",
    "ddp-best",
    "horovod",
    "pace-static",
    "pace-sharded",
    "pace-horovod",
    "pace-horovod-sharded",
)

# Who competes elsewhere, where all do.
UNCLIPPED = tuple(contender.name for contender in CONTENDERS if not contender.sharded)

# What every setting measures; the rest only where the targets are.
CORE = ("ddp", "ddp-best", "horovod", "pace-static", "pace-horovod")

# The peers that PACE's first target names: what users get without trying anything.
UNTUNED = ("ddp", "horovod", "horovod-autotuned")
