"""What an import found, for people and as one document: the report that ``pace import kineto`` prints."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from pace.cost_warnings import profile_warnings
from pace.counted import counted
from pace.documents.profile import Profile
from pace.documents.recorded_step import RecordedStep, recorded_job, recorded_step

DOUBTFUL, MISLEADING = 0.1, 0.3
# If waiting that no schedule changes exceeds this share of the step, answers say that they leave it out.
LATE = 0.02
SEVERAL_MODELS = "DDP of several models"
TWICE = 2.0
HOST_BOUND = 0.2
"""Share of a step in which the device waits for its host."""


def import_report(profile: Profile) -> dict[str, Any]:
    """Return what was imported, beside the metadata of the profile."""
    sizes = sorted((gradient.size_bytes for gradient in profile.gradients), reverse=True)
    return {
        "profile": profile.name,
        "workers": profile.workers,
        "ops": len(profile.ops),
        "gradients": len(sizes),
        "gradient_bytes": sum(sizes),
        "largest_gradient_bytes": sizes[0] if sizes else 0,
        "cost": _cost(profile),
        **{key: value for key, value in profile.metadata.items() if key != "recorded_allreduces"},
        "recorded_allreduces": len(profile.metadata.get("recorded_allreduces", ())),
        "warnings": list(import_warnings(profile)),
    }


def _cost(profile: Profile) -> dict[str, Any]:
    document = profile.allreduce.model_dump(mode="json")
    samples = document.get("samples")
    if samples is None:
        return {"kind": document["kind"]}
    sizes = [size for size, _ in samples]
    return {
        "kind": "samples",
        "samples": len(samples),
        "smallest_bytes": min(sizes),
        "largest_bytes": max(sizes),
        "calls": sum(document["counts"]),
        "ranks": document["ranks"],
    }


def import_warnings(profile: Profile) -> Iterator[str]:
    """Yield what an answer from this profile cannot be trusted in, and that the job may hang."""
    if (doubt := profile.metadata.get("ranks_doubt")) is not None:
        yield str(doubt)
    if (differs := profile.metadata.get("order_differs")) is not None:
        yield (
            f"ranks issue collectives in different orders, so the job can hang: {differs}. "
            "`pace check-order` shows who then waits for whom."
        )
    if (job := recorded_job(profile)) is not None and job.kind == SEVERAL_MODELS:
        yield (
            "the step trains several models, and a schedule may put their gradients into one group. Record a "
            "step of each model alone to plan it"
        )
    replay = recorded_step(profile)
    if replay is None:
        return
    if (varied := _two_lengths(replay.recorded_s)) is not None:
        yield varied
    if abs(replay.error) > DOUBTFUL:
        yield f"the replayed step is {replay.error:+z.0%} off the recorded one{_reason(replay)}"
    if profile.metadata.get("allreduce_from_trace"):
        yield from profile_warnings(profile)


def _reason(replay: RecordedStep) -> str:
    return "" if replay.not_explained is None else f": {replay.not_explained}"


def _two_lengths(recorded_s: Sequence[float]) -> str | None:
    """Return the warning about steps of two lengths, one at least twice the other; None without."""
    lengths_s = sorted(recorded_s)
    factors = [
        (longer / shorter, at) for at, (shorter, longer) in enumerate(pairwise(lengths_s), 1) if shorter > 0
    ]
    factor, cut = max(factors, default=(0.0, 0))
    if factor < TWICE:
        return None
    few, many = (
        f"{part[0] * 1e3:,.1f} to {part[-1] * 1e3:,.1f} ms" if len(part) > 1 else f"{part[0] * 1e3:,.1f} ms"
        for part in (lengths_s[:cut], lengths_s[cut:])
    )
    return (
        f"{cut} of {len(lengths_s)} steps took {few}, and {len(lengths_s) - cut} took {many}: "
        "predictions are for the median step. Find out why some steps take longer, or record more steps"
    )


def misleading(profile: Profile) -> Iterator[str]:
    """Yield what every answer repeats: that the replay is more than 30 % off, or does not count waiting."""
    replay = recorded_step(profile)
    if replay is None:
        return
    if abs(replay.error) > MISLEADING:
        yield (
            f"{profile.name}: the step that was recorded is predicted {replay.error:+z.0%} off, and so may "
            f"be this answer{_reason(replay)}"
        )
    elif replay.late_s > LATE * replay.predicted_s:
        yield (
            f"{profile.name}: this answer leaves out {replay.late_s * 1e3:,.1f} ms of waiting for late ranks "
            "or the host in each step. `pace headroom` includes it"
        )


def report_lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield the report as lines of text; of other formats than Kineto's, what all have."""
    if "job" in report:
        job = report["job"]
        yield f"job          {job['kind']} ({job['sure']}: {job['why']})"
    yield (
        f"gradients    {report['gradients']}, {report['gradient_bytes']:,} bytes, the largest "
        f"{report['largest_gradient_bytes']:,}; {counted(report['workers'], 'worker')}"
    )
    if "tied_parameters" not in report:
        return
    if report["tied_parameters"]:
        yield f"tied         gradients of parameters that several layers share: {report['tied_parameters']}"
    wall = report["step_wall_s"]
    yield (
        f"step         {wall * 1e3:.2f} ms, the median of {report['steps']}; on the {report['clock']} clock "
        f"compute takes {report['compute_s'] * 1e3:.2f} ms"
    )
    if report["clock"] != "host":
        host = report["host_wait_s"] / wall if wall else 0.0
        yield (
            f"device       busy {report['busy_share']:.0%}; waits for its host {host:.0%}, for all-reduces "
            f"{report['exposed_communication_s'] * 1e3:.2f} ms, for other collectives "
            f"{report['fixed_communication_s'] * 1e3:.2f} ms"
        )
        if host > HOST_BOUND:
            yield (
                "host         recording slows a job whose device waits for its host:"
                " compare the step with one that is not recorded"
            )
    if report["late_ranks_s"] is not None:
        rank = "unnumbered" if report["rank"] is None else report["rank"]
        yield (
            f"ranks        {report['ranks']} together; the slowest is {rank}; they wait "
            f"{report['late_ranks_s'] * 1e3:.2f} ms a step for the last to come, on average"
        )
    elif report["ranks"] > 1:
        yield f"ranks        {report['ranks']}, whose collectives differ: who waited for whom is not known"
    cost = report["cost"]
    if cost["kind"] == "samples" and cost["calls"]:
        yield (
            f"cost         {cost['samples']} sizes from {cost['smallest_bytes']:,.0f} to "
            f"{cost['largest_bytes']:,.0f} bytes, {counted(cost['calls'], 'call')}"
        )
    why = report["recorded_allreduces_why"]
    yield f"all-reduces  {report['recorded_allreduces']} a step; " + (
        why or "their sizes match the gradients"
    )
    if report["other_collectives"]:
        others = ", ".join(f"{count} {name}" for name, count in report["other_collectives"].items())
        yield f"collectives  {others}: kept as communication that no schedule moves"
    if report["bucket_copies"]:
        yield (
            f"copies       {report['bucket_copies']} a step by the wrapper itself, "
            f"{report['bucket_copies_s'] * 1e3:.2f} ms"
        )
    replay = report["replay"]
    yield (
        f"replay       {replay['predicted_s'] * 1e3:.2f} ms predicted for what was recorded, "
        f"{replay['error']:+z.1%}; each step {', '.join(f'{error:+z.1%}' for error in replay['errors'][:8])}"
    )
    dropped = report["dropped"]
    if any(dropped.values()):
        yield (
            f"dropped      {dropped['kernels_before_recording']} kernels launched before recording "
            f"({dropped['kernels_before_recording_s'] * 1e3:.2f} ms), "
            f"{dropped['kernels_of_no_operator_s'] * 1e3:.2f} ms of no operator, "
            f"{dropped['steps']} steps, {dropped['undefined_gradients']} undefined gradients a step"
        )
