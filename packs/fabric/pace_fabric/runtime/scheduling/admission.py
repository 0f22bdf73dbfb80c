"""How many workers may begin a computation so that no update is late, whatever overtakes it."""

from collections.abc import Iterable


class Admission:
    """Counts what is computed, and what was allowed to begin.

    An update computed from version v keeps its bound if at most ``bound`` updates are committed from v on
    when its own is among them. So computations may begin as long as this holds for the oldest under way, even
    if all others were committed before it.

    Parameters
    ----------
    bound
        On delays; None admits everybody.
    """

    def __init__(self, bound: int | None) -> None:
        self._bound = bound
        self._computing: dict[str, tuple[int, ...]] = {}
        self._admitted: dict[str, dict[str, list[int]]] = {}  # host and key of the model: versions

    def note(self, host: str, versions: tuple[int, ...], delivered: str = "") -> None:
        """Take in which models a host's workers compute from, and which model they have just got."""
        self._computing[host] = versions
        self.take_back(host, delivered)

    def lose(self, host: str) -> None:
        """A host is gone, with its workers."""
        self._computing.pop(host, None)
        self._admitted.pop(host, None)

    def take_back(self, host: str, key: str) -> None:
        """A host has got a model, or does not get it after all."""
        self._admitted.get(host, {}).pop(key, None)

    def admit(
        self,
        host: str,
        key: str,
        wanted: int,
        *,
        version: int,
        planned_version: int,
        waiting: Iterable[int],
    ) -> int | None:
        """Return how many workers of a host may begin from the model as it is; None for all.

        Parameters
        ----------
        key
            Key of the model that they are to get.
        wanted
            How many ask.
        version, planned_version
            Version of the model, and after all planned commits.
        waiting
            Versions that updates were computed from which are not planned yet.
        """
        if self._bound is None:
            return None
        under_way = [*waiting]
        for computed in self._computing.values():
            under_way += computed
        for admitted in self._admitted.values():
            under_way += (each for versions in admitted.values() for each in versions)
        room = self._bound - (planned_version - min([version, *under_way])) - len(under_way)
        allowed = max(min(wanted, room), 0)
        if allowed:
            self._admitted.setdefault(host, {})[key] = [version] * allowed
        return allowed
