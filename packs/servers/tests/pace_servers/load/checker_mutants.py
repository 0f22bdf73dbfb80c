"""Mutants of schedules over servers, which the checker must refuse; see ``tests.load.checker_mutants``.

.venv/bin/python -m tests.pace_servers.load.checker_mutants [--mutants N] [--seed S] [--json OUT]
"""

import random

from pace.documents.options import Options
from pace.kinds import optimize
from tests.load.checker_mutants import Case, MakeCase, drawn_profile, judged_schedule
from tests.pace_servers.load.forged_plans import servers_forgeries
from tests.pace_servers.planning.clusters import cluster


def servers_case(random_: random.Random) -> Case:
    """Return a schedule over servers, its judge, and its forgeries."""
    profile = drawn_profile(random_)
    colocated = random_.random() < 0.5
    servers = cluster(2, bytes_per_s=20.0, colocated=colocated, partition_s=0.25, round_trip_s=0.5)
    schedule = optimize(profile, Options(cluster=servers)).to_json().decode()
    return schedule, judged_schedule(profile), servers_forgeries(profile)


CASES: dict[str, MakeCase] = {"servers": servers_case}
