"""A profile from the files of any known tool, told by their content."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from pace.documents.collective_costs import AllReduce
from pace.documents.profile import Profile, load_profile
from pace.errors import FormatError
from pace.formats.reading import warn_of_workers
from pace.formats.recognize import KnownFormat, tell_format
from pace.formats.replay import with_replay

NO_COST = "the file holds no cost of an all-reduce: give --cost, or --bandwidth-gbps and --latency-s"
NO_WORKERS = "the file does not say how many workers took part: give their number (--workers)"


def read_any(
    paths: Sequence[str | Path],
    *,
    execution_trace: str | Path | None = None,
    parameters: str | Path | None = None,
    workers: int | None = None,
    allreduce: AllReduce | None = None,
    name: str | None = None,
) -> Profile:
    """Make a profile of a file, or of the Kineto traces of all ranks of a job and a file with sizes.

    Raises
    ------
    FormatError
        If a file is of no known tool, or cannot be read as what it is.
    """
    by_format: defaultdict[KnownFormat, list[str | Path]] = defaultdict(list)
    for path in paths:
        by_format[tell_format(path)].append(path)
    if "kineto" in by_format:
        from pace.formats.kineto import read_kineto

        return read_kineto(
            by_format.pop("kineto"),
            execution_trace=_sizes(by_format, "execution-trace", execution_trace),
            parameters=_sizes(by_format, "parameters", parameters),
            workers=workers,
            allreduce=allreduce,
            name=name,
        )
    if len(paths) > 1:
        kinds = ", ".join(f"{Path(path).name}: {told}" for told, found in by_format.items() for path in found)
        raise FormatError(
            paths[0], f"several files must be the Kineto traces of one job's ranks; these are {kinds}"
        )
    ((told, (path,)),) = by_format.items()
    if execution_trace is not None or parameters is not None:
        raise FormatError(
            path,
            "an execution trace or list of parameters is for Kineto traces, and this is another kind of file "
            f"({told})",
        )
    return read_as(told, path, workers=workers, allreduce=allreduce, name=name)


def _sizes(
    by_format: dict[KnownFormat, list[str | Path]], told: KnownFormat, given: str | Path | None
) -> str | Path | None:
    """Return the file that gives the sizes of gradients, among those named and the one of its option."""
    found = [*by_format.pop(told, []), *([] if given is None else [given])]
    if len(found) > 1:
        raise FormatError(found[1], f"a second {told}: give only one, which is for all ranks")
    if told == "parameters" and by_format:
        other, paths = next(iter(by_format.items()))
        raise FormatError(
            paths[0],
            f"this is a file of another kind ({other}) among the traces of a job's ranks: leave it out",
        )
    return found[0] if found else None


def read_as(
    told: KnownFormat,
    path: str | Path,
    *,
    workers: int | None = None,
    allreduce: AllReduce | None = None,
    name: str | None = None,
) -> Profile:
    """Make a profile of one file of a known format.

    Raises
    ------
    FormatError
        If it cannot be read as this format, or makes no profile by itself. The reason is `NO_COST` or
        `NO_WORKERS` if only an argument is missing.
    """
    match told:
        case "profile":
            profile = load_profile(path)
            given = {"workers": workers, "allreduce": allreduce, "name": name}
            changed = profile.replace(**{key: value for key, value in given.items() if value is not None})
            network = profile.workers, profile.allreduce
            replay = profile.metadata.get("replay")
            if allreduce is None and changed.workers != profile.workers:
                warn_of_workers(path, profile.workers, changed.workers)
            if isinstance(replay, dict) and (changed.workers, changed.allreduce) != network:
                return with_replay(changed, replay, on_its_network=False)
            return changed
        case "kineto":
            from pace.formats.kineto import read_kineto

            return read_kineto([path], workers=workers, allreduce=allreduce, name=name)
        case "horovod-timeline":
            from pace.formats.horovod_timeline import read_horovod_profile

            return read_horovod_profile(path, workers=workers, allreduce=allreduce, name=name)
        case "chakra":
            from pace.formats.chakra import read_chakra

            # A trace that cannot be read is refused for its own reason first.
            profile = read_chakra(path, workers=workers or 1, allreduce=allreduce, name=name)
            return profile.replace(workers=_needed_workers(path, workers))
        case "layers" | "pipedream":
            from pace.formats.layers import read_layer_csv
            from pace.formats.pipedream import read_pipedream

            read = read_layer_csv if told == "layers" else read_pipedream
            if allreduce is None:
                raise FormatError(path, NO_COST)
            return read(path, workers=_needed_workers(path, workers), allreduce=allreduce, name=name)
        case "execution-trace":
            reason = (
                "this is a PyTorch execution trace, which holds no durations: pass it together with a Kineto "
                "trace, or run `pace import execution-trace` with --device-tflops, which computes them"
            )
            raise FormatError(path, reason)
        case "cost-log":
            raise FormatError(path, "this is a log of all-reduces, without a job: run `pace fit` on it")
        case _:
            raise FormatError(path, "this is a list of parameters: pass it together with a Kineto trace")


def _needed_workers(path: str | Path, workers: int | None) -> int:
    if workers is None:
        raise FormatError(path, NO_WORKERS)
    return workers
