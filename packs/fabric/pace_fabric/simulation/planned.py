"""MLfabric simulated: a scheduler that plans the transfers of updates and models, tick by tick.

Asynchronous: an update is committed in planned order, its worker pulls a newer model. Synchronous: no
deadlines; all updates of an iteration are committed before any model is sent.
"""

import heapq
from dataclasses import dataclass, field

import numpy as np

from pace.solver.arrays import FloatArray
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.simulation.draws import Computations, draw_links, rates_at
from pace_fabric.simulation.records import CommitRecord, FabricRun
from pace_fabric.solver.aggregation import Aggregation, Hop, aggregate, fastest_hosts
from pace_fabric.solver.capacity import SAME_MOMENT_S, Capacities
from pace_fabric.solver.distribution import distribute
from pace_fabric.solver.ordering import order_updates
from pace_fabric.solver.replication import LeadLimit, replicate
from pace_fabric.solver.updates import NO_DEADLINE, Updates


@dataclass(frozen=True, slots=True)
class Booked:
    """A transfer that was given bandwidth on the real network."""

    source: int
    target: int
    pieces: FloatArray
    end_s: float

    def left_bytes(self, at_s: float) -> float:
        """Return how much is still to come."""
        spans = np.clip(self.pieces[:, 1] - np.maximum(self.pieces[:, 0], at_s), 0.0, None)
        return float((spans * self.pieces[:, 2]).sum())


class BookedNetwork:
    """Transfers in order of priority on links whose real rates are known only here.

    The scheduler knows rates as they were a monitor's lag ago, takes them to stay, and knows how many bytes
    of each transfer under way are still to come.
    """

    def __init__(self, links: Capacities, lag_s: float) -> None:
        self._links = links
        self._left = links.copy()
        self._lag_s = lag_s
        self._under_way: list[Booked] = []

    def send(self, source: int, target: int, size_bytes: float, start_s: float) -> float:
        """Send with all that earlier transfers leave; return when the last byte arrives."""
        booked = self._left.reserve(source, target, size_bytes, start_s)
        if len(booked.pieces):
            self._under_way.append(Booked(source, target, booked.pieces, booked.end_s))
        return booked.end_s

    def seen(self, now: float) -> Capacities:
        """Return what the scheduler takes to be left, in absolute time from `now` on."""
        rates = rates_at(self._links, now - self._lag_s)
        view = Capacities.constant(rates[0::2], rates[1::2])
        self._under_way = [booked for booked in self._under_way if booked.end_s > now]
        for booked in self._under_way:
            left = booked.left_bytes(now)
            if left > 0:
                view.reserve(booked.source, booked.target, left, max(now, float(booked.pieces[0, 0])))
        self._trim(now)
        return view

    def busy_until(self, view: Capacities, link: int, now: float) -> float:
        """Return from when on a link is seen to be free of what is under way."""
        steps = view.steps(link)
        return max(now, steps[-1][0]) if len(steps) > 1 else now

    def _trim(self, now: float) -> None:
        """Forget the past: steps that ended before `now`."""
        times, rates, counts = self._left.times, self._left.rates, self._left.counts
        for link in np.flatnonzero(counts > 12).tolist():
            count = int(counts[link])
            gone = int(np.searchsorted(times[link, :count], now, side="right")) - 1
            if gone > 0:
                times[link, : count - gone] = times[link, gone:count]
                rates[link, : count - gone] = rates[link, gone:count]
                times[link, 0] = 0.0
                counts[link] = count - gone


_SLOW_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class _Waiting:
    sender: int
    version: int
    ready_s: float


@dataclass
class _Replica:
    """Updates that the replica still has to receive, in commit order."""

    senders: list[int] = field(default_factory=list)


class _Scheduler:
    """State of one simulated run. A sender is a worker, or a machine whose workers are summed first."""

    def __init__(self, scenario: FabricScenario, *, synchronous: bool) -> None:
        self.scenario = scenario
        self.synchronous = synchronous
        self.share = scenario.workers_per_machine if scenario.sum_hosts else 1
        self.num_senders = scenario.num_workers // self.share
        self.run = FabricRun(
            policy="mlfabric-s" if synchronous else "mlfabric-a",
            duration_s=scenario.duration_s,
            num_workers=scenario.num_workers,
        )
        self.links = draw_links(scenario)
        self.network = BookedNetwork(self.links, scenario.lag_s)
        self.compute = Computations(scenario)
        self.server, self.replica_host = scenario.machines, scenario.machines + 1
        self.planned_version = 0  # once all that is planned is committed
        self.version = 0
        self.computing: list[tuple[float, int, int]] = []
        self.pending: list[_Waiting] = []
        self.due: list[tuple[float, int]] = []  # commits to come: when, and how many versions
        self.asks: list[tuple[float, int]] = []  # models to be asked for: when, and by which sender
        self.wanted: list[int] = []  # models that were asked for
        self.held: list[tuple[int, int]] = []  # senders that may not begin yet, with their model's version
        self.unreplicated = _Replica()

    def machine(self, sender: int) -> int:
        return sender if self.scenario.sum_hosts else sender // self.scenario.workers_per_machine

    def simulate(self) -> FabricRun:
        for sender in range(self.num_senders):
            self._begin(sender, 0, 0.0)
        tick = 0
        while True:
            tick += 1
            now = tick * self.scenario.tick_s
            if now > self.scenario.duration_s:
                return self._finished()
            self._catch_up(now)
            view = self.network.seen(now)
            self._plan_updates(view, now)
            self._plan_models(view, now)

    def _finished(self) -> FabricRun:
        end = self.scenario.duration_s
        self.run.commits = [commit for commit in self.run.commits if commit.at_s <= end]
        return self.run

    def _begin(self, sender: int, version: int, at: float) -> None:
        workers = range(sender * self.share, (sender + 1) * self.share)
        done = at + max(self.compute.draw_s(worker) for worker in workers)
        heapq.heappush(self.computing, (done, sender, version))

    def _catch_up(self, now: float) -> None:
        """Take in what happened up to now: commits, computations that are done, and what they ask for."""
        while self.due and self.due[0][0] <= now:
            self.version += heapq.heappop(self.due)[1]
        while self.computing and self.computing[0][0] <= now:
            done, sender, version = heapq.heappop(self.computing)
            self.pending.append(_Waiting(sender, version, done))
            self.run.computed += self.share
            if self.scenario.pull == "at-once" and not self.synchronous:
                heapq.heappush(self.asks, (done, sender))
        while self.asks and self.asks[0][0] <= now:
            self.wanted.append(heapq.heappop(self.asks)[1])
        held, self.held = self.held, []
        for sender, version in held:
            self._begin_or_hold(sender, version, now)

    def _begin_or_hold(self, sender: int, version: int, at: float) -> None:
        under_way = self.planned_version - version + self.share * (len(self.pending) + len(self.computing))
        if self.scenario.late == "pace" and under_way >= self.scenario.delay_bound:
            self.held.append((sender, version))
        else:
            self._begin(sender, version, at)

    def _just_in_time(self, view: Capacities, link: int, now: float) -> bool:
        if self.scenario.batching == "every-tick":
            return True
        return self.network.busy_until(view, link, now) < now + self.scenario.tick_s

    def _aggregators(self, view: Capacities) -> tuple[int, ...]:
        return fastest_hosts(view, range(self.scenario.machines), self.scenario.aggregators)

    def _updates(self, waiting: list[_Waiting], now: float) -> Updates:
        bound = self.scenario.delay_bound
        last = [
            NO_DEADLINE
            if self.synchronous
            else (each.version + bound - 1 - self.planned_version) // self.share + 1
            for each in waiting
        ]
        return Updates(
            size=np.full(len(waiting), float(self.scenario.update_bytes)),
            host=np.array([self.machine(each.sender) for each in waiting], dtype=np.int64),
            server=self.server,
            deadline=np.array(last, dtype=np.int64),
            ready=np.full(len(waiting), now),
        )

    def _plan_updates(self, view: Capacities, now: float) -> None:
        if not self.pending or not self._just_in_time(view, 2 * self.server + 1, now):
            return
        waiting, self.pending = self.pending, []
        self.run.batch_sizes.append(len(waiting))
        updates = self._updates(waiting, now)
        ordering = order_updates(updates, view, late=self.scenario.late)
        for drop in ordering.dropped:
            sender = waiting[drop.update].sender
            self.run.dropped[sender] = self.run.dropped.get(sender, 0) + self.share
            if self.scenario.pull == "after-commit":
                heapq.heappush(self.asks, (now, sender))
        plan = aggregate(updates, ordering.commits, view, self._aggregators(view), begin_s=now)
        if plan is None or not plan.groups:
            return
        plan, not_before = self._replicated(updates, waiting, ordering.commits, plan, view)
        self._count_messages(plan.hops, now)
        ends = self._execute(plan.hops, now, not_before)
        arrived = {
            update: end
            for hop, end in zip(plan.hops, ends, strict=True)
            if hop.target == self.server
            for update in hop.updates
        }
        last = max((at for at, _ in self.due), default=now)
        for group, planned in plan.groups:
            last = max(last, *(arrived[update] for update in group))
            for update in group:
                self._commit(waiting[update], planned, last, float(ordering.weights[update]))
        view.times, view.rates, view.counts = plan.left.times, plan.left.rates, plan.left.counts

    def _commit(self, update: _Waiting, planned: float, at: float, weight: float) -> None:
        self.run.commits.append(
            CommitRecord(
                worker=update.sender,
                version=self.planned_version,
                from_version=update.version,
                num_updates=self.share,
                planned_s=planned,
                at_s=at,
                weight=weight,
            )
        )
        self.planned_version += self.share
        heapq.heappush(self.due, (at, self.share))
        if self.synchronous or self.scenario.pull == "after-commit":
            heapq.heappush(self.asks, (at, update.sender))

    def _execute(
        self, hops: tuple[Hop, ...], now: float, not_before: dict[int, float] | None = None
    ) -> list[float]:
        """Make planned transfers on the real network, in order; return when each ends.

        Times are hints: each goes as soon as what it needs is there.
        """
        ends: list[float] = []
        waits = not_before or {}
        for number, hop in enumerate(hops):
            start = max([now, waits.get(number, now), *(ends[earlier] for earlier in hop.after)])
            ends.append(self.network.send(hop.source, hop.target, hop.size_bytes, start))
            if hop.target == self.server:
                self.run.server_bytes += hop.size_bytes
            elif hop.target == self.replica_host:
                self.run.replica_bytes += hop.size_bytes
        return ends

    def _count_messages(self, hops: tuple[Hop, ...], now: float) -> None:
        rates = rates_at(self.links, now)
        slow = _SLOW_SHARE * max(self.scenario.links.bytes_per_s)
        for hop in hops:
            if hop.source != hop.target:
                self.run.messages += 1
                self.run.slow_messages += bool(rates[2 * hop.target + 1] < slow)

    def _replicated(
        self,
        updates: Updates,
        waiting: list[_Waiting],
        order: tuple[int, ...],
        plan: Aggregation,
        view: Capacities,
    ) -> tuple[Aggregation, dict[int, float]]:
        """Plan the replica's share and make its transfers.

        Returns the server's plan, perhaps moved, and until when which of its transfers wait for the replica.
        """
        most = self.scenario.replicate_updates
        if most is None:
            return plan, {}
        punted = self.unreplicated.senders
        senders = [*punted, *(waiting[update].sender for update in order)]
        queue = Updates(
            size=np.full(len(senders), float(self.scenario.update_bytes)),
            host=np.array([self.machine(sender) for sender in senders], dtype=np.int64),
            server=self.server,
            ready=np.full(len(senders), float(updates.ready[0])),
        )
        limit = LeadLimit(kind="updates", most=most / self.share)
        made = replicate(
            queue,
            np.zeros(len(senders)),
            plan,
            len(punted),
            view,
            self.replica_host,
            limit,
            self._aggregators(view),
            patient=self.scenario.replicate_patiently,
        )
        if made is None:
            return plan, {}
        self.unreplicated.senders = [senders[number] for number in made.punted]
        ends = self._execute(made.frozen, float(updates.ready[0]))
        needed = {}
        for number in made.held:
            latest = made.server.hops[number].reservation.start_s + SAME_MOMENT_S
            arrived = [
                end
                for end, frozen in zip(ends, made.frozen, strict=True)
                if frozen.target == self.replica_host and frozen.reservation.end_s <= latest
            ]
            needed[number] = max(arrived, default=0.0)
        return made.server, needed

    def _plan_models(self, view: Capacities, now: float) -> None:
        if not self.wanted or not self._just_in_time(view, 2 * self.server, now):
            return
        if self.synchronous and len(self.wanted) < self.num_senders:
            return
        asking, self.wanted = self.wanted, []
        hosts = sorted({self.machine(sender) for sender in asking})
        size = float(self.scenario.update_bytes)
        plan = distribute(view, self.server, hosts, size, self._aggregators(view), begin_s=now)
        if plan is None:
            self.wanted = asking
            return
        ends = self._execute(plan.hops, now)
        arrived = {hop.target: end for hop, end in zip(plan.hops, ends, strict=True)}
        if self.synchronous:
            self.run.rounds_s.append(max(arrived.values()))
        for sender in asking:
            at = arrived[self.machine(sender)]
            if self.synchronous:
                self._begin(sender, self.version, at)
            else:
                self._begin_or_hold(sender, self.version, at)


def simulate_planned(scenario: FabricScenario, *, synchronous: bool = False) -> FabricRun:
    """Simulate MLfabric, asynchronous with a delay bound or synchronous."""
    return _Scheduler(scenario, synchronous=synchronous).simulate()
