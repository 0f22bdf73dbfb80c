"""Converts an all-reduce profile to the steps of a worker with parameter servers."""

from typing import Any

from pace.documents.profile import HALVES, Gradient, Profile
from pace.documents.steps import StepLink, StepsDocument, StepsOp, StepTimes, TouchedBytes
from pace.errors import InvalidOptions
from pace.jitter import jittered_durations
from pace.simulation.worker import parameter_server_worker
from pace.solver.cost_curve import CostCurve

MOST_GENERATED = 100_000


def steps_from_profile(
    profile: Profile,
    *,
    bytes_per_s: float,
    servers: int = 1,
    batch: float = 1,
    count: int = 1,
    jitter: float = 0.0,
    seed: int = 0,
) -> StepsDocument:
    """Convert a profile to steps: pull, forward pass, backward pass, a push of each ready gradient, update.

    Updates take no time, because a profile does not have their durations. Add them if they are known.
    Embedding tables of which the profile has the rows touched move these rows: pushes those of one worker,
    pulls those of all workers.

    Parameters
    ----------
    bytes_per_s
        Rate of a host's link.
    servers
        Number of parameter servers.
    batch
        Number of examples in a step.
    count
        Number of steps to draw. A single step has exactly the profile's durations.
    jitter
        Relative standard deviation of op durations, for ops without one in the profile.
    seed
        The same seed gives the same steps.

    Raises
    ------
    InvalidOptions
        If a number is out of range.
    """
    if not (1 <= servers <= MOST_GENERATED and 1 <= count <= MOST_GENERATED):
        raise InvalidOptions(f"{servers} servers and {count} steps: expected 1 to {MOST_GENERATED:,} of both")
    if not 0 <= jitter <= 10:
        raise InvalidOptions(f"jitter is {jitter}: expected 0 to 10")
    dag = parameter_server_worker(profile, servers=servers, transfer=CostCurve.affine(0.0, 1.0 / bytes_per_s))
    gradients = {gradient.name: gradient for gradient in profile.gradients}
    streams = {op.name: op.stream for op in profile.ops}
    transfers = len(profile.gradients)
    last = len(dag.names) - transfers
    names = [
        *(f"down/{gradient.name}" for gradient in profile.gradients),
        *(f"compute/{name}" for name in dag.names[transfers:last]),
        *(f"up/{gradient.name}" for gradient in profile.gradients),
    ]
    ops = []
    for number, name in enumerate(names):
        kind = name.partition("/")[0]
        deps = tuple(names[before] for before in dag.predecessors[number])
        what = name.partition("/")[2]
        if kind == "compute":
            ops.append(StepsOp(name=name, resource="worker", stream=streams[what], deps=deps))
            continue
        server = (int(dag.resources[number]) - 1) % servers
        ops.append(
            StepsOp(
                name=name,
                resource="downlink" if kind == "down" else "uplink",
                server=server,
                deps=deps,
                **_size(gradients[what], pulled=kind == "down"),
            )
        )
    if count == 1:
        drawn = [[op.duration_s for op in profile.ops]]
    else:
        drawn = jittered_durations(profile, jitter=jitter, count=count, seed=seed).tolist()
    index = {op.name: number for number, op in enumerate(profile.ops)}
    return StepsDocument(
        name=profile.name,
        batch=batch,
        servers=servers,
        ops=tuple(ops),
        steps=tuple(
            StepTimes(
                duration_s=tuple(
                    times[index[op.name.partition("/")[2]]] if op.resource == "worker" else 0.0 for op in ops
                )
            )
            for times in drawn
        ),
        link=StepLink(bytes_per_s=bytes_per_s),
        metadata={"source": "profile", "profile_sha256": profile.sha256},
    )


def _size(gradient: Gradient, *, pulled: bool) -> dict[str, Any]:
    """Return the fields of a transfer's size."""
    whole, touched = gradient.size_bytes, gradient.touched
    if touched is None or not whole or gradient.dtype in HALVES:
        return {"size_bytes": whole}
    by_workers = [touched.sent_bytes(whole, workers + 1) for workers in range(len(touched.distinct))]
    alone: dict[str, Any] = {"size_bytes": round(by_workers[0])}
    return alone | {"touched": TouchedBytes(by_workers=by_workers, whole_bytes=whole)} if pulled else alone
