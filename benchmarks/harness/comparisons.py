"""With whom a record compares PACE: who is compared, and what each column of the table holds."""

from dataclasses import dataclass

from benchmarks.harness.contenders import DDP, FRAMEWORK_PAIRS, UNTUNED


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
