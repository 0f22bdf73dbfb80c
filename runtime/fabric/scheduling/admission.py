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
        self._admitted: dict[str, list[int]] = {}

    def note(self, host: str, versions: tuple[int, ...], *, delivered: bool) -> None:
        """Take in which models a host's workers compute from."""
        self._computing[host] = versions
        if delivered:
            self._admitted.pop(host, None)

    def lose(self, host: str) -> None:
        """A host is gone, with its workers."""
        self._computing.pop(host, None)
        self.take_back(host)

    def take_back(self, host: str) -> None:
        """A host does not get the model after all."""
        self._admitted.pop(host, None)

    def admit(
        self, host: str, wanted: int, *, version: int, planned_version: int, waiting: Iterable[int]
    ) -> int | None:
        """Return how many workers of a host may begin from the model as it is; None for all.

        Parameters
        ----------
        wanted
            How many ask.
        version, planned_version
            Of the model, and of it once all that is planned is committed.
        waiting
            Versions that updates were computed from which are not planned yet.
        """
        if self._bound is None:
            return None
        under_way = [*waiting]
        for versions in (*self._computing.values(), *self._admitted.values()):
            under_way += versions
        room = self._bound - (planned_version - min([version, *under_way])) - len(under_way)
        if not under_way:
            room = max(room, 1)  # nobody could make room later
        allowed = max(min(wanted, room), 0)
        if allowed:
            self._admitted.setdefault(host, []).extend([version] * allowed)
        return allowed
