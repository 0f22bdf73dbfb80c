"""An asynchronous server written again with SimPy: processes, and rates raised step by step."""

from typing import Any

import simpy

from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.simulation.draws import Computations, draw_links
from pace_fabric.solver.capacity import Capacities


class FluidReference:
    """Transfers that share links max-min fairly, recomputed whenever something changes."""

    def __init__(self, environment: simpy.Environment, links: Capacities) -> None:
        self._env = environment
        self._links = links
        self._flows: dict[simpy.Event, list[float]] = {}
        self._paths: dict[simpy.Event, tuple[int, int]] = {}
        self._changed = environment.event()
        environment.process(self._serve())

    def send(self, source: int, target: int, size: float) -> simpy.Event:
        """Begin a transfer; the event happens when it ends."""
        done = self._env.event()
        self._flows[done] = [size]
        self._paths[done] = (2 * source, 2 * target + 1)
        changed, self._changed = self._changed, self._env.event()
        changed.succeed()
        return done

    def _rates(self) -> dict[simpy.Event, float]:
        """Raise all rates together; those on a link that has become full stay."""
        capacity = {
            link: self._links.rate_at(link, self._env.now) for p in self._paths.values() for link in p
        }
        rates = dict.fromkeys(self._paths, 0.0)
        rising = set(rates)
        while rising:
            room = {}
            for link, most in capacity.items():
                mine = [flow for flow in rising if link in self._paths[flow]]
                if mine:
                    room[link] = (most - sum(rates[f] for f in rates if link in self._paths[f])) / len(mine)
            step = min(room.values())
            for flow in rising:
                rates[flow] += step
            full = {link for link, left in room.items() if left <= step * (1 + 1e-12) + 1e-9}
            rising = {flow for flow in rising if not full & set(self._paths[flow])}
        return rates

    def _next_step(self) -> float:
        starts = [s for link in range(len(self._links.counts)) for s, _ in self._links.steps(link)]
        return min((s - self._env.now for s in starts if s > self._env.now + 1e-12), default=1e9)

    def _serve(self) -> Any:
        while True:
            rates = self._rates()
            wait = min(
                [
                    self._next_step(),
                    *(left[0] / rates[flow] for flow, left in self._flows.items() if rates[flow] > 0),
                ]
            )
            began = self._env.now
            yield self._env.timeout(wait) | self._changed
            passed = self._env.now - began
            for flow, left in list(self._flows.items()):
                if flow not in rates:
                    continue  # it has just begun
                left[0] -= rates[flow] * passed
                if left[0] <= 1e-6 * rates[flow]:
                    del self._flows[flow], self._paths[flow]
                    flow.succeed()


def async_commits(scenario: FabricScenario) -> list[tuple[float, int]]:
    """Return when the server commits which worker's update, up to the scenario's end."""
    env = simpy.Environment()
    network = FluidReference(env, draw_links(scenario))
    compute = Computations(scenario)
    commits: list[tuple[float, int]] = []

    def train(worker: int, first_s: float) -> Any:
        machine = worker // scenario.workers_per_machine
        yield env.timeout(first_s)
        while True:
            yield network.send(machine, scenario.machines, float(scenario.update_bytes))
            commits.append((env.now, worker))
            yield network.send(scenario.machines, machine, float(scenario.update_bytes))
            yield env.timeout(compute.draw_s(worker))

    for worker in range(scenario.num_workers):
        env.process(train(worker, compute.draw_s(worker)))
    env.run(scenario.duration_s)
    return commits
