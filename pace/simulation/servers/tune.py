"""The best knobs of a policy of push and pull, by a search that starts where the best is expected."""

from typing import Any

from pace.documents.cluster import Cluster
from pace.documents.profile import Profile
from pace.planning.servers.problem import ExchangeProblem
from pace.simulation.registry import make_server_policy
from pace.simulation.servers.run import run_server_policy
from pace.simulation.tune import Search, Tuned, tunable, tune_policy

# ByteScheduler's best credits are 3.5 to 5.8 partitions (Table 1).
CREDIT_IN_PARTITIONS = 4


def tune_on_servers(
    profile: Profile,
    cluster: Cluster,
    policy: str,
    *,
    search: Search = "bayesian",
    num_trials: int = 40,
    seed: int = 0,
    fixed: dict[str, Any] | None = None,
) -> Tuned:
    """Search for the knobs of `policy` that make the window shortest.

    Bayesian optimization starts at delta0 = sqrt(M theta B / (2 S)) and a credit of four such partitions.

    Parameters
    ----------
    num_trials
        Settings to simulate; a grid takes the largest that is no larger.
    fixed
        Knobs that keep a value.

    Raises
    ------
    InvalidOptions
        If the policy has no knob to search, or the search does not exist.
    """
    fixed = fixed or {}
    suggested = ExchangeProblem.of(profile, cluster).suggested_partition_bytes()

    def price(settings: dict[str, Any]) -> float:
        made = make_server_policy(policy, **fixed, **settings)
        return run_server_policy(profile, cluster, made).iteration_s

    return tune_policy(
        policy,
        tuple(knob for knob in tunable(policy) if knob not in fixed),
        price,
        make_server_policy(policy, **fixed),
        search=search,
        num_trials=num_trials,
        seed=seed,
        start={"partition_bytes": suggested, "credit_bytes": CREDIT_IN_PARTITIONS * suggested},
    )
