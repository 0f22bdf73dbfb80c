"""Predicts throughput with more workers, servers and faster links, from one worker's recorded steps."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pace.counted import counted
from pace.documents.base import refuse_other
from pace.documents.steps import WINDOWED, StepLink, StepsDocument
from pace.errors import InvalidOptions, InvalidSteps
from pace_servers.documents.fleet import Fleet
from pace_servers.documents.prediction import (
    CoarseModels,
    Improvement,
    LinkUse,
    PredictedCurve,
    PredictedPoint,
    PredictionOptions,
    StalenessShare,
    ThroughputPrediction,
    Trusted,
)
from pace_servers.throughput.coarse import (
    bound_rate,
    closed_network_rate,
    compute_s,
    cynthia_rate,
    link_s,
)
from pace_servers.throughput.graph import with_servers
from pace_servers.throughput.recorded_steps import (
    compute_variation,
    implied_bytes_per_s,
    rate_error,
    recorded_step_s,
    replay_error,
)
from pace_servers.throughput.simulate import StepSimulation, simulate_steps

BYTES_PER_GBIT = 1e9 / 8
SATURATED = 0.75
MOST_REPLAY_ERROR = 0.05
# By how much the recorded busy time of links may differ from the time of their bytes at the link's rate.
MOST_RATE_ERROR = 0.1
LEAST_VARIATION = 0.01
MOST_SPREAD = 1.2  # 95th percentile over 5th percentile; with a larger ratio a mean has little meaning
SHARE_SPREAD = 0.02  # measured for some 300 kB where connections have equally much under way

Progress = Callable[[int], None]

# A worker is worthwhile if it adds at least this share of the first worker's throughput.
_WORTH_HAVING = 0.25
# A point is a dip if it is below the envelope by more than this share.
_DIP = 0.05


def predict(
    steps: StepsDocument,
    options: PredictionOptions | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ThroughputPrediction:
    """Predict the throughput of training at every scale that the options name.

    Parameters
    ----------
    steps
        One worker's recorded steps.
    options
        The scales and the link.
    threads
        Number of simulations at the same time (default: one per CPU). The result does not depend on it.
    progress
        Called with the number of points finished since its last call.

    Returns
    -------
    ThroughputPrediction
        The same document and options give the same prediction.

    Raises
    ------
    InvalidOptions
        If options do not fit the document.
    """
    options = PredictionOptions() if options is None else options
    refuse_other(steps, StepsDocument, InvalidSteps)
    refuse_other(options, PredictionOptions, InvalidOptions)
    base = _with_link(steps, options)
    replay = replay_error(steps)
    alone_s = recorded_step_s(steps)
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        run = _Runs(options=options, pool=pool)
        points: list[PredictedPoint] = []
        curves = []
        for document in _documents(base, options):
            curve = []
            for workers in options.workers:
                curve.append(_point(document, steps, workers, run, alone_s))
                if progress is not None:
                    progress(1)
            points += curve
            curves.append(_curve(document, curve, run))
    # TensorFlow's default windows adapt to the network: no fixed discipline describes them well.
    trusted: Trusted = "simulation"
    if rate_error(base) > MOST_RATE_ERROR:
        # One worker's compute may hide it; more workers share the link.
        trusted = "neither"
    elif replay is not None and replay > MOST_REPLAY_ERROR:
        trusted = "closed_network"  # it knows no discipline
    return ThroughputPrediction(
        name=steps.name,
        steps_sha256=steps.sha256,
        unit="examples" if steps.batch != 1 else "steps",
        options=options,
        points=tuple(points),
        curves=tuple(curves),
        replay_error=replay,
        trusted=trusted,
        notes=(*_notes(base, options, replay, points, trusted), *_losses(curves, options)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Runs several simulations of one point at the same time."""

    options: PredictionOptions
    pool: ThreadPoolExecutor

    def __call__(self, document: StepsDocument, workers: int, fleet: Fleet) -> list[StepSimulation]:
        def one(seed: int) -> StepSimulation:
            return simulate_steps(
                document,
                workers,
                fleet=fleet,
                steps=self.options.steps,
                skip=self.options.skip,
                seed=seed,
            )

        return list(self.pool.map(one, range(self.options.seeds)))


def _with_link(steps: StepsDocument, options: PredictionOptions) -> StepsDocument:
    link = steps.link
    discipline = options.discipline or link.discipline
    window = options.window_bytes if options.window_bytes is not None else link.window_bytes
    if discipline in WINDOWED and window is None:
        raise InvalidOptions(f'discipline "{discipline}" needs a window in bytes')
    spread, size = next(
        (source.share_spread, source.share_spread_bytes)
        for source in (options, link, PredictionOptions(share_spread=SHARE_SPREAD))
        if source.share_spread is not None
    )
    return steps.replace(
        link=StepLink(
            bytes_per_s=link.bytes_per_s,
            window_bytes=window,
            discipline=discipline,
            share_spread=spread,
            share_spread_bytes=size,
        )
    )


def _documents(base: StepsDocument, options: PredictionOptions) -> Iterator[StepsDocument]:
    rates = [gbps * BYTES_PER_GBIT for gbps in options.bandwidth_gbps] or [base.link.bytes_per_s]
    for rate in rates:
        link = base.link.model_copy(update={"bytes_per_s": rate})
        for servers in options.servers or (base.servers,):
            yield with_servers(base.replace(link=link), servers)


def _point(
    document: StepsDocument, recorded: StepsDocument, workers: int, run: _Runs, alone_s: float | None
) -> PredictedPoint:
    fleet = run.options.fleet
    runs = run(document, workers, fleet)
    rates = np.array([one.steps_per_s for one in runs]) * document.batch
    links = _links(document, workers, fleet, runs)
    busiest = max(links, key=lambda link: link.utilization, default=None)
    named = (
        f"{busiest.host} {busiest.number} {busiest.direction}"
        if busiest is not None and busiest.utilization >= SATURATED
        else "workers"
    )
    staleness = np.concatenate([one.measured_staleness for one in runs])
    values, counts = np.unique(staleness, return_counts=True)
    same = (
        document.link.bytes_per_s == recorded.link.bytes_per_s
        and document.servers == recorded.servers
        and fleet == Fleet()
    )
    lone = alone_s if alone_s is not None and same else _alone_s(document, fleet)
    mean = float(rates.mean())
    return PredictedPoint(
        workers=workers,
        servers=document.servers,
        bandwidth_gbps=document.link.bytes_per_s / BYTES_PER_GBIT,
        throughput=mean,
        low=float(np.quantile(rates, 0.05)),
        high=float(np.quantile(rates, 0.95)),
        step_s=workers * document.batch / mean if mean else 0.0,
        bottleneck=named,
        links=links,
        staleness=tuple(
            StalenessShare(staleness=int(value), share=float(count) / len(staleness))
            for value, count in zip(values, counts, strict=True)
        ),
        mean_staleness=float(staleness.mean()) if len(staleness) else 0.0,
        coarse=_coarse(document, workers, fleet, lone),
        extrapolated=document.servers != recorded.servers,
    )


def _alone_s(document: StepsDocument, fleet: Fleet) -> float:
    """Return the mean step of a single worker, in seconds, over every recorded step once, in order."""
    plain = Fleet(
        pull_every=fleet.pull_every,
        push_every=fleet.push_every,
        server_bytes_per_s=fleet.server_bytes_per_s,
    )
    count = len(document.steps) * fleet.pull_every * fleet.push_every
    order = [[at % len(document.steps) for at in range(count)]]
    run = simulate_steps(document, 1, fleet=plain, steps=count, skip=0, drawn=order)
    if not len(run.end_s):
        rate = document.link.bytes_per_s
        raise InvalidOptions(f"no step ever ends over links of {rate:g} bytes/s: expected faster links")
    return float(run.end_s[-1]) / count


def _coarse(document: StepsDocument, workers: int, fleet: Fleet, alone_s: float) -> CoarseModels:
    demands = link_s(document.at_workers(workers), fleet)
    down, up = demands[: document.servers], demands[document.servers :]
    transfer_s = (max(down) + max(up)) / 2
    other_s = max(alone_s - sum(link_s(document, fleet)), 0.0)
    batch = document.batch
    return CoarseModels(
        cynthia=batch * cynthia_rate(compute_s(document), transfer_s, workers),
        closed_network=batch * closed_network_rate(demands, other_s, workers),
        bound=batch * bound_rate(alone_s, demands, workers),
    )


def _links(
    document: StepsDocument, workers: int, fleet: Fleet, runs: list[StepSimulation]
) -> tuple[LinkUse, ...]:
    carried = np.mean(
        [
            one.carried_bytes / (one.measured_s[1] - one.measured_s[0])
            for one in runs
            if one.measured_s[1] > one.measured_s[0]
        ]
        or [np.zeros((workers, 2 * document.servers))],
        axis=0,
    )
    found = []
    for at, direction in ((0, "downlink"), (1, "uplink")):
        part = carried[:, at * document.servers : (at + 1) * document.servers]
        own = fleet.download_bytes_per_s if at == 0 else fleet.upload_bytes_per_s
        for host, rates, sums in (
            ("server", fleet.server_bytes_per_s, part.sum(axis=0)),
            ("worker", own, part.sum(axis=1)),
        ):
            for number, bytes_per_s in enumerate(sums.tolist()):
                limit = rates[number % len(rates)] if rates else document.link.bytes_per_s
                found.append(
                    LinkUse.model_validate(
                        {
                            "host": host,
                            "number": number,
                            "direction": direction,
                            "utilization": bytes_per_s / limit,
                        }
                    )
                )
    return tuple(sorted(found, key=lambda link: (link.host, link.number, link.direction)))


def _curve(document: StepsDocument, curve: list[PredictedPoint], run: _Runs) -> PredictedCurve:
    options, fleet = run.options, run.options.fleet
    busiest = max(link_s(document, fleet))
    knee = knee_of(curve)
    at = options.at_workers or knee or max(point.workers for point in curve)
    advice = tuple(_improvements(document, at, run)) if options.advice else ()
    return PredictedCurve(
        servers=document.servers,
        bandwidth_gbps=document.link.bytes_per_s / BYTES_PER_GBIT,
        knee_workers=knee,
        balance_workers=_alone_s(document, fleet) / busiest if busiest else None,
        at_workers=at if advice else None,
        improvements=advice,
        dips=tuple(dips_of(curve)),
    )


def _improvements(document: StepsDocument, here: int, run: _Runs) -> Iterator[Improvement]:
    fleet = run.options.fleet
    link = document.link.model_copy(update={"bytes_per_s": 2 * document.link.bytes_per_s})
    doubled = {
        field: tuple(2 * rate for rate in getattr(fleet, field))
        for field in ("download_bytes_per_s", "upload_bytes_per_s", "server_bytes_per_s")
    }
    faster = tuple(2 * speed for speed in fleet.speed or (1.0,))
    now = np.array([one.steps_per_s for one in run(document, here, fleet)])
    for change, changed, workers, other in (
        ("one more worker", document, here + 1, fleet),
        ("one more server", with_servers(document, document.servers + 1), here, fleet),
        ("links twice as fast", document.replace(link=link), here, fleet.model_copy(update=doubled)),
        ("compute twice as fast", document, here, fleet.model_copy(update={"speed": faster})),
    ):
        rates = np.array([one.steps_per_s for one in run(changed, workers, other)])
        mean = float(np.mean(rates))
        # With the same seeds on both sides: what they have in common does not widen the band.
        gains = rates / now - 1 if now.all() else np.zeros(len(rates))
        low, high = np.percentile(gains, (5, 95)).tolist()
        gain = mean / float(np.mean(now)) - 1 if now.any() else 0.0
        found = {
            "change": change,
            "throughput": mean * document.batch,
            "gain": gain,
            "low": low,
            "high": high,
        }
        yield Improvement.model_validate(found)


def _losses(curves: Sequence[PredictedCurve], options: PredictionOptions) -> Iterator[str]:
    """Yield why a change makes training without a barrier slower: workers fall into lock step."""
    slower = {
        (curve.at_workers, each.change)
        for curve in curves
        for each in curve.improvements
        if curve.at_workers is not None and each.gain < 0 and options.fleet.barrier == "none"
    }
    for workers, change in sorted(slower, key=str):
        yield (
            f"with {counted(workers, 'worker')}, {change} makes the simulated training slower: "
            "workers that were apart fall in step, so they use the links at once and leave them idle in "
            "between. Real workers may stay apart: to simulate that, give workers different join_s in the "
            "fleet"
        )


def _notes(
    steps: StepsDocument,
    options: PredictionOptions,
    replay: float | None,
    points: Sequence[PredictedPoint],
    trusted: Trusted,
) -> Iterator[str]:
    if replay is None:
        yield "the document does not say when ops started, so the simulation was not checked against it"
    elif trusted == "closed_network":
        yield (
            f"recorded steps are replayed with a median error of {replay * 100:.1f} %: the link's "
            "discipline is not what was recorded; rely on the closed network"
        )
    elif trusted == "neither":
        implied = implied_bytes_per_s(steps) or 0.0
        yield (
            f"the link's rate differs by up to {rate_error(steps) * 100:.0f} % from recorded transfers: "
            f"these imply about {implied:.4g} bytes/s ({implied / BYTES_PER_GBIT:.4g} Gbit/s) instead of "
            f"{steps.link.bytes_per_s:.4g}; do not rely on any column until the document has the right rate"
        )
    if len(steps.steps) < 30:
        yield f"{len(steps.steps)} recorded steps: 30 or more show how much steps vary"
    unsettled = sorted({point.workers for point in points if point.high > MOST_SPREAD * point.low})
    if unsettled:
        yield (
            f"simulations of {', '.join(map(str, unsettled))} workers differ by more than 20 %, as workers "
            "stay in lock step in some, and apart in others: simulate more steps"
        )
    together = not steps.link.share_spread and not options.fleet.join_s and max(options.workers) > 1
    if together and compute_variation(steps) < LEAST_VARIATION:
        yield (
            "compute hardly varies between recorded steps, so simulated workers that start together may stay "
            "in lock step, and real ones do not: let them start apart, by join_s of a fleet"
        )
    known = steps.most_workers
    if known is not None and max(options.workers) > known:
        yield (
            f"the rows that more than {known} workers touch together are not known: sizes of pulls are upper "
            "estimates there"
        )
    if any(servers != steps.servers for servers in options.servers):
        yield (
            "other numbers of servers are extrapolated (*): each parameter is placed on the server with the "
            "fewest bytes"
        )
    if any(op.resource == "ps" for op in steps.ops):
        yield "on a server, updates of all workers run at the same time, however many there are"


def _envelope(curve: list[PredictedPoint]) -> list[tuple[int, float]]:
    """Return the corners of the upper concave envelope of throughput over workers, from (0, 0) on."""
    corners = [(0, 0.0)]
    for workers, rate in sorted((point.workers, point.throughput) for point in curve):
        while len(corners) > 1:
            (w0, r0), (w1, r1) = corners[-2:]
            if (r1 - r0) * (workers - w0) > (rate - r0) * (w1 - w0):
                break
            corners.pop()
        corners.append((workers, rate))
    return corners


def knee_of(curve: list[PredictedPoint]) -> int | None:
    """Return the most workers of which each adds at least a quarter of the first one's throughput.

    None if all do. The curve's concave envelope is used, so a dip, where workers run in lock-step, does not
    count.
    """
    corners = _envelope(curve)
    (_, _), (fewest, first) = corners[:2]
    for (w0, r0), (w1, r1) in pairwise(corners[1:]):
        if (r1 - r0) / (w1 - w0) < _WORTH_HAVING * first / fewest:
            return w0
    return corners[-1][0] if len(corners) > 1 and corners[-1][0] < max(p.workers for p in curve) else None


def dips_of(curve: list[PredictedPoint]) -> Iterator[int]:
    """Yield the numbers of workers whose throughput is well below what more and fewer workers suggest."""
    corners = _envelope(curve)
    for point in sorted(curve, key=lambda point: point.workers):
        for (w0, r0), (w1, r1) in pairwise(corners):
            if w0 < point.workers < w1:
                expected = r0 + (r1 - r0) * (point.workers - w0) / (w1 - w0)
                if point.throughput < (1 - _DIP) * expected:
                    yield point.workers
