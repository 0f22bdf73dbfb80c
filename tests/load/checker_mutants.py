"""Mutants of plans and schedules, which the checkers must refuse.

    .venv/bin/python -m tests.load.checker_mutants [--mutants N] [--seed S] [--json OUT]

Plans are made for drawn all-reduces; packs search with cases of their own. A mutant
differs in one number by 1 to 50 %, has two entries of a list exchanged, or one entry twice or not at all; or
it is a forgery, whose changes at several places fit one another. What only records how a plan was made
(``RECORDS``) and what may differ in a plan that is as good (``FREE``) is left alone. A mutant that says the
same in other words, claims less (``meaning``), or is true of another cluster, is counted and may be accepted.
Prints every other mutant that a checker accepts, and exits with 1 if there is one.
"""

import argparse
import copy
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.harness.conditions import write_json
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import parse_schedule
from pace.errors import InvalidSchedule
from pace.kinds import check, optimize
from tests.strategies import affine, layered

RECORDS = {"solver", "options", "name", "schema_version", "fingerprint", "profile_sha256"}
# How much may be in flight, or which of several patterns of execution is used, is the runtime's to choose.
FREE = {"execution"}

Judge = Callable[[str], bool]
# Returns the changed document, or None where the plan has nothing to forge, or would be no worse.
Forgery = Callable[[dict[str, Any], random.Random], dict[str, Any] | None]
Case = tuple[str, Judge, list[Forgery]]


def drawn_profile(random_: random.Random) -> Profile:
    """Return four layers of drawn sizes and times."""
    return layered(
        [random_.randint(10, 200) for _ in range(4)],
        allreduce=affine(0.5, 0.05),
        backward_s=[random_.randint(1, 5) for _ in range(4)],
        forward_s=[random_.randint(1, 5) for _ in range(4)],
        workers=2,
    )


def judged_schedule(profile: Profile) -> Judge:
    """Return whether the checker accepts a schedule's document."""

    def accepts(document: str) -> bool:
        try:
            return check(profile, parse_schedule(document)) == []
        except InvalidSchedule:
            return False

    return accepts


def allreduce_case(random_: random.Random) -> Case:
    """Return a schedule of all-reduces and its judge."""
    profile = drawn_profile(random_)
    return optimize(profile, Options()).to_json().decode(), judged_schedule(profile), []


MakeCase = Callable[[random.Random], Case]
CASES: dict[str, MakeCase] = {"allreduce": allreduce_case}


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield all numbers and all lists of several entries, with where they are."""
    if path and path[-1] in RECORDS | FREE:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        if len(value) > 1 and value[0] != value[1]:
            yield path, value
        for number, inner in enumerate(value):
            yield from places(inner, (*path, number))
    elif isinstance(value, int | float) and not isinstance(value, bool) and value:
        yield path, value


def mutant(document: Any, random_: random.Random) -> tuple[str, str]:
    """Return a changed document, and what was changed."""
    changed = copy.deepcopy(document)
    path, value = random_.choice(list(places(changed)))
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if isinstance(value, list):
        at = random_.randrange(len(value) - 1)
        kind: str | int = random_.choice(["exchanged", "twice", "missing"])
        if kind == "exchanged":
            value[at], value[at + 1] = value[at + 1], value[at]
        elif kind == "twice":
            value.insert(at, copy.deepcopy(value[at]))
        else:
            del value[at]
    elif isinstance(value, int):
        kind = random_.choice([-1, 1]) * max(abs(value) // 100, 1)
        inner[path[-1]] = value + kind
    else:
        factor = random_.choice([0.5, 0.9, 0.99, 1.01, 1.1, 1.5])
        kind = f"x {factor}"
        inner[path[-1]] = value * factor
    return json.dumps(changed), f"{'.'.join(map(str, path))} {kind}"


def meaning(plan: Any, original: Any) -> Any:
    """Return what a plan says, whatever the order of a set or the steps between priorities.

    Tensors of a group are ready together and needed together, so that their order in its buffer is free.

    A chain bound below the original's is the original's: it is true as well, and proves less.
    """
    said = copy.deepcopy(plan)
    for group in said.get("groups", ()):
        group["tensors"].sort()
    for proof in said.get("proofs", ()):
        proof["set"] = sorted(proof["set"])
    for drop in said.get("dropped", ()):
        drop["witness"] = sorted(drop["witness"])
    if said.get("exchange", "allreduce") == "allreduce" and "groups" in said:
        said["transfers"].sort(key=lambda transfer: transfer["priority"])
        for rank, transfer in enumerate(said["transfers"]):
            transfer["priority"] = rank
    if (chain := said.get("chain_bound")) is not None:
        chain["bound_s"] = max(chain["bound_s"], original["chain_bound"]["bound_s"])
    return said


def mutants(document: Any, forgeries: list[Forgery], random_: random.Random) -> Iterator[tuple[Any, str]]:
    """Yield every forgery of a document once, and then changed documents without end; each with its name."""
    for forge in forgeries:
        forged = forge(document, random_)
        if forged is not None:
            yield forged, forge.__qualname__.partition(".")[0]
    while True:
        changed, what = mutant(document, random_)
        yield json.loads(changed), what


def search(
    num_mutants: int, seed: int, cases: Mapping[str, MakeCase] = CASES
) -> tuple[Counter[str], list[str], int]:
    """Make mutants until so many were judged.

    Returns how many were refused of each kind, which were accepted, and how many more say the same.
    """
    random_ = random.Random(seed)
    refused: Counter[str] = Counter()
    accepted: list[str] = []
    equal = 0
    while refused.total() + len(accepted) < num_mutants:
        for name, make in cases.items():
            text, accepts, forgeries = make(random_)
            if not accepts(text):
                raise RuntimeError(f"{name}: the checker refuses the plan itself: {text}")
            document = json.loads(text)
            left = num_mutants - refused.total() - len(accepted)
            for changed, what in islice(mutants(document, forgeries, random_), min(20, left)):
                if changed == document:
                    continue
                if meaning(changed, document) == meaning(document, document):
                    equal += 1
                elif not accepts(json.dumps(changed)):
                    refused[name] += 1
                elif changed | {"cluster": None} == document | {"cluster": None}:
                    equal += (
                        1  # the cluster is given: its times are no claim, and those that follow are right
                    )
                else:
                    accepted.append(f"{name}: {what}")
                    print(f"accepted: {accepted[-1]}", flush=True)
    return refused, accepted, equal


def main(cases: Mapping[str, MakeCase] = CASES) -> int:
    """Make mutants, and print those that are accepted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=1000, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed of plans and mutants")
    parser.add_argument("--kinds", default=",".join(cases), help="kinds of plans (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    arguments = parser.parse_args()
    refused, accepted, equal = search(
        arguments.mutants, arguments.seed, {kind: cases[kind] for kind in arguments.kinds.split(",")}
    )
    print(
        f"{refused.total()} mutants refused ({dict(refused)}), {len(accepted)} accepted;"
        f" {equal} more say the same"
    )
    if arguments.json is not None:
        write_json(arguments.json, {"refused": dict(refused), "accepted": accepted})
    return 1 if accepted else 0


if __name__ == "__main__":
    sys.exit(main())
