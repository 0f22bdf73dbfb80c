"""Plans of graphs kept in a folder, so that a job that starts again need not measure and plan again."""

import os
import tempfile
from pathlib import Path

from pace.checker.graph.check import check_graph
from pace.documents.graph.collective_graph import CollectiveGraph, load_graph
from pace.documents.schedule import Schedule, load_schedule
from pace.errors import InvalidSchedule


class PlanFolder:
    """A folder with two documents for each plan, ``KEY.graph.json`` and ``KEY.schedule.json``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> tuple[CollectiveGraph, Schedule] | None:
        """Return the graph and the plan of a key, or None.

        Raises
        ------
        InvalidGraph, InvalidSchedule
            If a document was damaged, or the plan is not one of the graph.
        """
        try:
            graph, schedule = load_graph(self._graph(key)), load_schedule(self._schedule(key))
        except FileNotFoundError:
            return None
        violations = check_graph(graph, schedule)
        if violations:
            raise InvalidSchedule(f"{self._schedule(key)}: {violations[0]}; delete the file to plan again")
        return graph, schedule

    def store(self, key: str, graph: CollectiveGraph, schedule: Schedule) -> None:
        """Write both documents; a reader never finds part of one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path, document in (
            (self._graph(key), graph.to_json()),
            (self._schedule(key), schedule.to_json()),
        ):
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(document)
            os.replace(file.name, path)

    def _graph(self, key: str) -> Path:
        return self._folder / f"{key}.graph.json"

    def _schedule(self, key: str) -> Path:
        return self._folder / f"{key}.schedule.json"
