"""The table of contenders: DDP, Horovod, frameworks, policies of parameter servers, and PACE over each.

Gradients are scaled to fit the network (``workload.scaling``). Sizes in bytes that peers have as defaults
(DDP's buckets of 1 and 25 MiB, Horovod's 128 MiB, ByteScheduler's 4 and 16 MB) are scaled by the same factor,
so that the same gradients share a bucket as in the unscaled model. P3's 160 kB are not: scaled to some 3 kB,
they would measure the time that Python needs for a message, not P3.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from pace.documents.options import Options
from pace.documents.schedule import SendDiscipline
from pace.runtime.options import Mode, Tune
from pace.runtime.transports.transport import Order

MEBIBYTE = 1 << 20
DDP_FIRST_MIB, DDP_MIB = 1.0, 25.0
HOROVOD_THRESHOLD_BYTES = 128 * MEBIBYTE

# Candidates for DDP's best bucket size, as sizes that an unscaled model would have.
DDP_SWEEP_MIB = (1.0, 2.5, 6.0, 12.0, 25.0, 60.0)

# Size of the parts into which FIFO over servers cuts tensors.
PARTITION_BYTES = 256 << 10

Backend = Literal["torch", "horovod", "servers"]
Framework = Literal["lightning", "accelerate"]
Kind = Literal["ddp", "ddp-sweep", "horovod", "pace", "bytescheduler", "hsdp-fifo", "hsdp", "policy", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A way to train that takes part in a comparison.

    Attributes
    ----------
    peer
        Whether it counts as what users run today. PACE is compared with peers.
    color
        In charts.
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
        Whose training loop runs and wraps the model in DDP; None for a loop of the harness.
    sharded
        Whether updates are sharded: gradients are reduce-scattered and parameters gathered.
    tune
        Whether it searches for its plan before anything is measured (``live_search``).
    policy, knobs
        The simulator's policy over parameter servers. Knobs whose names are in `scaled` are multiplied by the
        gradients' factor.
    """

    name: str
    label: str
    kind: Kind
    color: str
    backend: Backend = "torch"
    peer: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    options: Options | None = None
    order: Order | SendDiscipline = "auto"
    mode: Mode = "overlap"
    predicted_at: Backend | None = None
    tuning_iterations: int = 0
    attached: bool = False
    framework: Framework | None = None
    sharded: bool = False
    tune: bool = False
    policy: str = ""
    knobs: tuple[tuple[str, Any], ...] = ()
    scaled: frozenset[str] = frozenset()


# Horovod's defaults for autotuning need some 1,300 iterations; these let it finish in one setting's time.
_AUTOTUNE = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "8",
}

# ByteScheduler's own two knobs, and its number of trials; over servers credit is the connections' own.
_TRIALS, _ITERATIONS = 15, 4
# Plain operation, 15 proposals, and three finalists there and back, with their warm-up.
_TUNING_ITERATIONS = 1 + _ITERATIONS + _TRIALS * (2 + _ITERATIONS) + 2 * 3 * (2 + 2)


def live_search() -> Tune:
    """Return how contenders search that tune themselves; needs bayesian-optimization."""
    return Tune(knobs=("partition", "credit"), num_trials=_TRIALS, iterations=_ITERATIONS)


_peer = partial(Contender, peer=True)
_horovod = partial(_peer, kind="horovod", backend="horovod")
_pace = partial(Contender, kind="pace", options=Options(), order="static")
_paper = partial(_pace, options=Options(fusion="paper"))
_sharded = partial(_pace, options=Options(exchange="sharded"), sharded=True)
_over_horovod: dict[str, Any] = {"backend": "horovod", "order": "adaptive"}
_policy = partial(_peer, kind="policy", backend="servers", order="overtake")
_over_servers = partial(Contender, kind="pace", backend="servers", policy="pace")

ALLREDUCE = (
    _peer(name="ddp", label="DDP", kind="ddp", color="#9e9e9e"),
    _peer(name="ddp-best", label="DDP, best bucket size", kind="ddp-sweep", color="#616161"),
    _horovod(name="horovod", label="Horovod", color="#bcaaa4"),
    _horovod(
        name="horovod-unfused",
        label="Horovod, tensor by tensor",
        color="#8d6e63",
        environment={"HOROVOD_FUSION_THRESHOLD": "0"},
        # A cycle negotiates all tensors that wait, and they then follow each other as fast as Gloo is. The
        # cost over Horovod is that of a single call, which waits for a cycle.
        predicted_at="torch",
    ),
    _horovod(
        name="horovod-autotuned",
        label="Horovod, autotuned",
        color="#d7ccc8",
        environment=_AUTOTUNE,
        tuning_iterations=48,
    ),
    Contender(
        name="bytescheduler",
        label="ByteScheduler's policy",
        kind="bytescheduler",
        color="#b0bec5",
        order="priority",
    ),
    Contender(
        name="bytescheduler-tuned",
        label="ByteScheduler, tuned live",
        kind="bytescheduler",
        color="#90a4ae",
        order="priority",
        tune=True,
        tuning_iterations=_TUNING_ITERATIONS,
    ),
    _pace(
        name="pace",
        label="PACE on torch, defaults",
        color="#0d47a1",
        order="auto",
        mode="auto",
        tuning_iterations=24,
    ),
    _pace(name="pace-static", label="PACE on torch, static", color="#1976d2"),
    _pace(name="pace-ddp", label="PACE under DDP, static", color="#7986cb", attached=True),
    _pace(name="pace-adaptive", label="PACE on torch, adaptive", color="#64b5f6", order="adaptive"),
    _paper(name="pace-paper", label="PACE on torch, paper's fusion", color="#bbdefb"),
    _pace(name="pace-horovod", label="PACE on Horovod", color="#00695c", **_over_horovod),
    _pace(name="pace-horovod-static", label="PACE on Horovod, static", color="#26a69a", backend="horovod"),
    _paper(
        name="pace-horovod-paper", label="PACE on Horovod, paper's fusion", color="#b2dfdb", **_over_horovod
    ),
    _sharded(name="pace-sharded", label="PACE on torch, sharded", color="#e65100"),
    _sharded(name="pace-horovod-sharded", label="PACE on Horovod, sharded", color="#ffb74d", **_over_horovod),
)

# On two replicas of two shards each. Torch's own all-reduce waits for every sum on CPUs, so the runtime is
# compared with torch's order without that wait.
HSDP = (
    _peer(
        name="hsdp-fifo",
        label="HSDP, all-reduces in FIFO order",
        kind="hsdp-fifo",
        color="#ce93d8",
        order="static",
        mode="barrier",
    ),
    _peer(
        name="hsdp-fifo-overlap",
        label="HSDP, FIFO order, updates as under PACE",
        kind="hsdp-fifo",
        color="#9c27b0",
        order="static",
    ),
    _pace(name="pace-hsdp", label="PACE under HSDP, static", color="#4a148c", kind="hsdp"),
)

# In the loops of frameworks that wrap the model in DDP, each as its documentation says.
FRAMEWORKS = (
    _peer(name="lightning", label="Lightning", kind="ddp", color="#d7a98c", framework="lightning"),
    _pace(name="pace-lightning", label="PACE in Lightning, static", color="#795548", framework="lightning"),
    _peer(name="accelerate", label="Accelerate", kind="ddp", color="#f48fb1", framework="accelerate"),
    _pace(
        name="pace-accelerate", label="PACE in Accelerate, static", color="#ad1457", framework="accelerate"
    ),
)

# Policies of parameter servers, as the simulator has them, over the runtime's own wire.
OVER_SERVERS = (
    _policy(
        name="servers-fifo-whole",
        label="FIFO, whole tensors",
        color="#9e9e9e",
        policy="fifo",
        knobs=(("keys", "round-robin"),),
    ),
    _policy(
        name="servers-fifo",
        label="FIFO, equal parts",
        color="#616161",
        policy="fifo",
        knobs=(("keys", "parts"), ("partition_bytes", PARTITION_BYTES)),
    ),
    _policy(name="servers-p3", label="P3", color="#bcaaa4", policy="p3", knobs=(("acknowledged", False),)),
    _policy(
        name="servers-bytescheduler",
        label="ByteScheduler's policy",
        color="#8d6e63",
        policy="bytescheduler",
        knobs=(("partition_bytes", 4_000_000), ("credit_bytes", 16_000_000)),
        scaled=frozenset({"partition_bytes", "credit_bytes"}),
    ),
    _policy(
        name="servers-bytescheduler-tuned",
        label="ByteScheduler, tuned live",
        color="#6d4c41",
        kind="pace",
        policy="bytescheduler",
        knobs=(("partition_bytes", 4_000_000), ("credit_bytes", 16_000_000)),
        scaled=frozenset({"partition_bytes", "credit_bytes"}),
        tune=True,
        tuning_iterations=_TUNING_ITERATIONS,
    ),
    _policy(name="servers-tictac", label="TicTac (TAO)", color="#d7ccc8", policy="tao"),
    _over_servers(
        name="pace-servers-static",
        label="PACE over servers, static",
        color="#1976d2",
        knobs=(("order", "static"),),
        order="static",
    ),
    _over_servers(
        name="pace-servers",
        label="PACE over servers, overtake",
        color="#0d47a1",
        knobs=(("order", "overtake"),),
        order="overtake",
    ),
)

# TicTac's comparison: no order, TIO and TAO, with the barrier of TensorFlow and without.
RANDOM_ORDER = "random-order"
TICTAC = tuple(
    _policy(
        name=f"servers-{name}{'' if barrier else '-no-barrier'}",
        label=f"{label}{', barrier' if barrier else ''}",
        color=color,
        policy=policy,
        knobs=(("barrier", barrier),),
    )
    for policy, name, label, color in (
        (RANDOM_ORDER, "random", "random order", "#9e9e9e"),
        ("tio", "tio", "TIO", "#bcaaa4"),
        ("tao", "tao", "TAO", "#8d6e63"),
    )
    for barrier in (True, False)
)

# Rings between the workers' hosts, where each of these has a server as well.
RINGS = ("ddp", "pace-static")

BY_NAME = {each.name: each for each in (*ALLREDUCE, *FRAMEWORKS, *HSDP, *OVER_SERVERS, *TICTAC)}

# Each framework's own default, and PACE under it.
FRAMEWORK_PAIRS = {
    "torch DDP": ("ddp", "pace-ddp"),
    "Lightning": ("lightning", "pace-lightning"),
    "Accelerate": ("accelerate", "pace-accelerate"),
}

# Who competes where gradients are clipped by their global norm. FSDP2 is left out: over Gloo its
# reduce-scatter moves as many bytes as an all-reduce, and gathering the parameters comes on top
# (docs/guides/measure.md).
CLIPPING = (
    "ddp",
    "ddp-best",
    "horovod",
    "pace-static",
    "pace-sharded",
    "pace-horovod",
    "pace-horovod-sharded",
)

# Who competes in other settings with all-reduces: everyone in one of them, the core in the rest.
UNCLIPPED = tuple(contender.name for contender in ALLREDUCE if not contender.sharded)
CORE = ("ddp", "ddp-best", "horovod", "pace-static", "pace-horovod")

# What users get without trying anything, and DDP with either of its bucket sizes.
UNTUNED = ("ddp", "horovod", "horovod-autotuned")
DDP = ("ddp", "ddp-best")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A table of a report.

    Attributes
    ----------
    ours
        Contenders that are compared.
    baselines
        For each column the contenders of which the fastest counts; None for all peers.
    """

    title: str
    ours: tuple[str, ...]
    baselines: dict[str, tuple[str, ...] | None]


_PEERS: dict[str, tuple[str, ...] | None] = {
    "untuned peers": UNTUNED,
    "DDP's best bucket size": DDP,
    "the best peer": None,
}

COMPARISONS = (
    Comparison(
        title="PACE with sharded updates",
        ours=("pace-sharded", "pace-horovod-sharded"),
        baselines=_PEERS,
    ),
    Comparison(
        title="PACE over parameter servers",
        ours=("pace-servers", "pace-servers-static"),
        baselines={
            "FIFO, equal parts": ("servers-fifo",),
            "FIFO, whole tensors": ("servers-fifo-whole",),
            "the best peer": None,
        },
    ),
    Comparison(title="PACE with all-reduces", ours=("pace-static", "pace-horovod"), baselines=_PEERS),
    Comparison(
        title="PACE under HSDP",
        ours=("pace-hsdp",),
        baselines={"FIFO order": ("hsdp-fifo",), "FIFO order with overlap": ("hsdp-fifo-overlap",)},
    ),
    *(
        Comparison(title=f"PACE under {framework}", ours=(ours,), baselines={"its own default": (default,)})
        for framework, (default, ours) in FRAMEWORK_PAIRS.items()
    ),
)
