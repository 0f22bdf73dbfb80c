"""Mutants of traces of every kind of job, which `pace headroom` must answer or refuse in one line.

    .venv/bin/python -m tests.load.mutated_traces [--mutants N] [--seed S] [--json OUT] [FILE ...]

The traces are the small ones of the tests, a Horovod timeline, and the files that are named. A mutant has up
to four changes (events removed, repeated, moved in time or to another thread; values of other types or sizes;
names and categories exchanged), and one in eight then has bytes overwritten or is cut off. Each goes the way
of the command: reading, the answer, its page. Prints every mutant that ends in another exception than
``PaceError``, in an answer that is no JSON, or after over 20 s of the processor; exits with 1 if there is
one. 1,000 mutants take about a minute of the processor.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.conditions import write_json
from pace.documents.collective_costs import AffineAllReduce
from pace.errors import PaceError
from pace.formats.any_format import read_any
from pace.formats.import_report import import_report, import_warnings
from pace.formats.reading import FormatWarning, open_binary
from pace.view.headroom_page import headroom_page, text_lines
from pace.view.step_timelines import step_timelines
from pace.whatif.headroom import headroom
from tests.pace.formats.job_kinds import KINDS, REFUSED, document_of, late_events, single_events
from tests.pace.formats.kineto_features import launched_events
from tests.pace.formats.traces import horovod_events, kineto_document

LONGEST_S = 20
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    -(2**70),
    1e308,
    5e-324,
    -1.5,
    "",
    "x",
    "NaN",
    "9" * 40,
    [],
    {},
    [[[1]]],
    [-1],
    [2**40, 2**40],
)
COST = AffineAllReduce(latency_s=1e-3, seconds_per_byte=1e-9)


def originals() -> dict[str, Any]:
    """Return a trace of each kind of job."""
    made: dict[str, Any] = {name: document_of(make(), workers=many) for name, _, make, many in KINDS}
    made |= {name: document_of(make()) for name, make, _ in REFUSED}
    return made | {
        "late ranks": document_of(late_events()),
        "one process": document_of(single_events(), workers=1),
        "a GPU": kineto_document(launched_events()),
        "Horovod": horovod_events(iterations=4),
    }


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container with each of its keys or positions."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def change(document: Any, random_: random.Random) -> None:
    """Change one thing of a document."""
    events = document if isinstance(document, list) else document.get("traceEvents")
    if isinstance(events, list) and events and random_.random() < 0.7:
        change_events(events, random_)
        return
    found = list(places(document))
    if not found:
        return
    container, key = random_.choice(found)
    match random_.choice(["change", "remove", "repeat"]):
        case "remove":
            del container[key]
        case "repeat" if isinstance(container, list):
            container.insert(random_.randint(0, len(container)), container[key])
        case _:
            container[key] = random_.choice(VALUES)


def change_events(events: list[Any], random_: random.Random) -> None:
    """Change one event, or a run of events, as profilers, filters and clocks do."""
    at = random_.randrange(len(events))
    event, other = events[at], random_.choice(events)
    kind = random_.choice(["remove", "cut", "repeat", "field", "argument", "swap", "move", "thread", "name"])
    if kind == "remove":
        del events[at : at + random_.choice([1, 1, 1, 5, 50])]
    elif kind == "cut":
        del events[slice(at, None) if random_.random() < 0.5 else slice(at)]
    elif kind == "repeat":
        events[at:at] = events[at : at + random_.choice([1, 1, 10])]
    elif not isinstance(event, dict) or not isinstance(other, dict):
        return
    elif kind == "field" and event:
        events[at] = event | {random_.choice(list(event)): random_.choice(VALUES)}
    elif kind == "argument" and isinstance(event.get("args"), dict) and event["args"]:
        changed = {random_.choice(list(event["args"])): random_.choice(VALUES)}
        events[at] = event | {"args": event["args"] | changed}
    elif kind == "swap":
        shared = [key for key in event if key in other]
        key = random_.choice(shared or ["ts"])
        events[at] = event | {key: other.get(key)}
    elif kind == "move" and isinstance(event.get("ts"), int | float):
        # A huge integer is not multiplied: its product may be no float.
        moved = random_.choice([-1e6, -500.0, 1.0, 500.0, 1e4, 1e9])
        events[at] = event | {"ts": moved + float(min(event["ts"], 2**60))}
    elif kind == "thread":
        events[at] = event | {"tid": random_.choice([1, 2, 7, 33, 34, "gloo", None])}
    else:
        events[at] = event | {"name": other.get("name"), "cat": other.get("cat")}


def mutant(text: bytes, random_: random.Random) -> bytes:
    """Return a changed trace."""
    document = json.loads(text)
    for _ in range(random_.randint(1, 4)):
        change(document, random_)
    content = bytearray(json.dumps(document).encode())
    if random_.random() < 1 / 8:
        for _ in range(random_.randint(0, 3)):
            content[random_.randrange(len(content))] = random_.randrange(256)
        if random_.random() < 0.5:
            del content[random_.randrange(len(content)) :]
    return bytes(content)


def answered(path: Path, random_: random.Random) -> bool:
    """Give a file to headroom; whether it was answered rather than refused."""
    given = {"workers": 2, "allreduce": COST} if random_.random() < 0.3 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        try:
            profile = read_any([path], **given)  # type: ignore[arg-type]  # two keywords of two types
            report = import_report(profile)
            made = headroom(profile, clip=random_.random() < 0.2, warnings=tuple(import_warnings(profile)))
        except PaceError as refusal:
            reason = str(refusal)
            if not reason or "\n" in reason:
                raise AssertionError(f"the refusal is not one line: {reason!r}") from refusal
            return False
    json.dumps([report, made.to_document()], allow_nan=False)
    headroom_page(made, step_timelines(profile))
    list(text_lines(made))
    return True


def search(folder: Path, texts: dict[str, bytes], mutants: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Make mutants of all texts in turn; return how many were answered and refused, and the failures."""
    random_ = random.Random(seed)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    path = folder / "mutant.json"
    names = list(texts)
    before = signal.signal(signal.SIGPROF, _too_long)
    for number in range(mutants):
        name = names[number % len(names)]
        path.write_bytes(mutant(texts[name], random_))
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        try:
            counts["answered" if answered(path, random_) else "refused"] += 1
        except Exception as error:
            kept = folder / f"failed-{number}.json"
            path.replace(kept)
            where = traceback.extract_tb(error.__traceback__)[-1]
            failures.append(
                f"{name}: {type(error).__name__}: {error} ({where.filename}:{where.lineno}): {kept}"
            )
            print(failures[-1], flush=True)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if (number + 1) % 1000 == 0:
            print(f"{number + 1}: {dict(counts)}, {len(failures)} failures", flush=True)
    signal.signal(signal.SIGPROF, before)
    return counts, failures


def _too_long(*_: object) -> None:
    raise TimeoutError(f"over {LONGEST_S} s of the processor")


def main() -> int:
    """Make mutants, and print those that fail."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", type=Path, nargs="*", help="more traces (JSON, perhaps gzipped)")
    parser.add_argument("--mutants", type=int, default=1000, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutants")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    arguments = parser.parse_args()
    texts = {name: json.dumps(document).encode() for name, document in originals().items()}
    for path in arguments.files:
        with open_binary(path) as file:
            texts[str(path)] = file.read()
    folder = Path(tempfile.mkdtemp(prefix="mutated-traces-"))
    counts, failures = search(folder, texts, arguments.mutants, arguments.seed)
    print(f"{arguments.mutants} mutants of {len(texts)} traces: {dict(counts)}, {len(failures)} failures")
    if arguments.json is not None:
        write_json(arguments.json, {"counts": dict(counts), "failures": failures})
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
