"""One scenario under one policy: the entry point."""

from pace.errors import InvalidOptions
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.simulation.collective import simulate_collective
from pace_fabric.simulation.planned import simulate_planned
from pace_fabric.simulation.push_pull import simulate_push_pull
from pace_fabric.simulation.records import FabricRun

FABRIC_POLICIES = ("mlfabric-a", "mlfabric-s", "async", "chain", "ring", "tree", "ssp", "fedbuff", "quorum")


def simulate_fabric(scenario: FabricScenario, policy: str) -> FabricRun:
    """Simulate a whole run. Same scenario and policy, same run.

    Computations and links are drawn the same for every policy, so that runs can be compared in pairs.

    Raises
    ------
    InvalidOptions
        If there is no such policy.
    """
    match policy:
        case "mlfabric-a":
            return simulate_planned(scenario)
        case "mlfabric-s":
            return simulate_planned(scenario, synchronous=True)
        case "async" | "chain" | "ssp" | "fedbuff" | "quorum":
            return simulate_push_pull(scenario, policy)
        case "ring" | "tree":
            return simulate_collective(scenario, policy)
        case _:
            raise InvalidOptions(f'no policy "{policy}": there are {", ".join(FABRIC_POLICIES)}')
