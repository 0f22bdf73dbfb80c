"""When ranks exchange messages about their rows, between the backward pass and ``step()``.

In an *early* round every rank only calls ``step()``, without clipping or reading gradients. The first
messages of such a round are exchanged before any row is summed, and each update waits only for its own rows.
In other rounds, ranks wait for their rows before they exchange messages. Each round is expected to be like
the last ones; the messages tell when it is not.
"""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from pace.errors import CommunicationFailed, InvalidUse
from pace.runtime.engine.buffers import FusedGroup, Slot
from pace.runtime.engine.engine import Engine
from pace.runtime.engine.plan import SendPlan
from pace.runtime.optimizer.gradients.reduction import Averaging, Reduction
from pace.runtime.optimizer.shards.exchanges import ShardMarks, ShardMessage, Want
from pace.runtime.optimizer.shards.shard_memory import ShardedGroup
from pace.runtime.transports.transport import Transport

# After so many plain rounds in a row, the next one is early.
_PLAIN_ROUNDS = 3


@dataclass(slots=True)
class RowTurn:
    """What has happened since a round was sealed.

    Attributes
    ----------
    told
        Whether ranks have exchanged which gradients exist.
    plain
        Whether every rank only waited for ``step()`` then.
    early
        Whether updates may begin before all rows are summed.
    summed
        Whether the rows are summed.
    whole
        Whether every rank has all rows.
    replies
        The latest messages, as long as they describe the rows.
    agreed
        Whether all ranks have called ``step()``.
    total
        On a device: the norm of all ranks' rows, which the host has not read.
    finite
        On a device: whether the norm by which rows were clipped is finite.
    infinities
        Tensors for a GradScaler to find instead of gradients that are not finite.
    """

    told: bool = False
    plain: bool = False
    early: bool = False
    summed: bool = False
    whole: bool = False
    coefficient: float = 1.0
    unscaled: bool = False
    dropped: bool = False
    agreed: bool = False
    norm_type: float | None = None
    replies: list[ShardMessage] | None = None
    infinities: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)
    total: torch.Tensor | None = None
    finite: torch.Tensor | None = None


class RowMessages(Reduction):
    """A reduction by rows, in which ranks exchange messages about the state of their rows.

    Parameters
    ----------
    early
        Whether the first rounds are expected to be early.

    Attributes
    ----------
    held
        Gradients of the last step that user code has not cleared.
    """

    by_rows = True
    _marks: ShardMarks

    def __init__(
        self,
        plan: SendPlan,
        groups: Sequence[ShardedGroup],
        transport: Transport,
        averaging: Averaging,
        *,
        early: bool,
    ) -> None:
        super().__init__(plan, list(groups), transport, averaging)
        self._calls = groups
        self._expects_early = early
        self._num_plain = 0
        self._turn = RowTurn()
        self._want: Want = "gradients"
        self._carried: dict[Slot, torch.Tensor] = {}
        self.held: set[Slot] = set()
        self._on_device = transport.device is not None

    def _marks_of(self, groups: list[FusedGroup]) -> ShardMarks:
        return ShardMarks(self._transport, groups)

    @abstractmethod
    def _power(self, norm_type: float) -> float:
        """Return what this rank's rows contribute to the norm; 0 on a device, which sums it itself."""

    @abstractmethod
    def _sum_norms(self, norm_type: float) -> torch.Tensor:
        """Sum the norm of all ranks' rows on the device."""

    @abstractmethod
    def _follow(self, replies: list[ShardMessage]) -> None:
        """On a rank without a backward pass: clip and unscale its rows as the other ranks did theirs."""

    def attach(self, engine: Engine, ask: Callable[[int], None] | None = None) -> None:
        """Send through this engine; see ``Reduction``."""
        super().attach(engine, ask)
        if not self._expects_early:
            engine.separate_halves(apart=True)

    @property
    def early(self) -> bool:
        """Whether updates of this round wait for their own rows only, once all ranks ``agree``."""
        return self._turn.early

    def _exchange(self) -> None:
        """Exchange messages about rows; wait for this rank's rows only if necessary."""
        turn = self._turn
        # On a device nothing here waits for sums; without one, the sums are the first to tell of late ranks.
        with self._asking_late_ranks() if self._on_device and not turn.told else contextlib.nullcontext():
            if not turn.told and self._expects_early:
                self._open()
                if turn.early:
                    return
            if not turn.summed:
                self._sum_rows()
            replies = self._tell()
        asked = [each.norm_type for each in replies if each.want == "norm"]
        if asked and turn.norm_type is None:
            turn.norm_type = asked[0]
        self._follow(replies)
        counted = turn.norm_type is not None and all(each.power is not None for each in replies)
        if (
            self._on_device
            and counted
            and (turn.total is None or any(each.want == "norm" for each in replies))
        ):
            assert turn.norm_type is not None
            turn.total = self._sum_norms(turn.norm_type)

    def _open(self) -> None:
        """Agree, before rows are summed, on whether the round is early; if not, gathers wait for all rows."""
        turn = self._turn
        if turn.norm_type is not None:
            self._want = "norm"
        if self._want != "step":
            self.engine.separate_halves(apart=True)
            if not self._on_device:
                self._wait_for_others()
        self._tell()
        turn.early = turn.plain
        if not turn.early:
            self._expects_early = False
            self.engine.separate_halves(apart=True)

    def _sum_rows(self) -> None:
        if not (self._turn.told or self._on_device):
            self._wait_for_others()
        for number in range(len(self._groups)):
            self.engine.wait(number)
        for slot, row in self._carried.items():
            self._calls[slot.fused.number].pieces[slot].add_(row)
        self._carried.clear()
        self._turn.summed = True

    def _tell(self) -> list[ShardMessage]:
        """Exchange messages; the first of a turn has marks."""
        turn = self._turn
        first = not turn.told
        counted = turn.summed and turn.norm_type is not None
        mine = ShardMessage(
            want=self._want,
            code=self._marks.code,
            coefficient=turn.coefficient,
            unscaled=turn.unscaled,
            dropped=turn.dropped,
            norm_type=turn.norm_type or 2.0,
            power=self._power(turn.norm_type) if counted and turn.norm_type is not None else None,
            marks=self._marks.mine(self.held, self._groups) if first else b"",
        )
        with self._abandoned_on_failure():
            replies = [ShardMessage.decode(each) for each in self._transport.gather(mine.encode())]
        turn.replies = replies
        if first:
            turn.told = True
            turn.plain = all(each.plain for each in replies)
            differing = self._marks.learn(replies)
            self.held.clear()
            if differing is not None:
                self._refuse(
                    f"the last step's gradient of {self._slots[differing].name} was cleared on some ranks but"
                    " not on others: clear the same gradients on every rank"
                )
        return replies

    def _expect(self) -> None:
        """Expect the next rounds to be like the last ones; every rank decides the same."""
        self._num_plain = self._num_plain + 1 if self._turn.plain else 0
        if not self._expects_early and self._num_plain >= _PLAIN_ROUNDS:
            self._expects_early = True
            self.engine.separate_halves(apart=False)

    def _refuse_differences(self, replies: list[ShardMessage]) -> None:
        leading = [each for each in replies if not each.code.idle]
        if len({(each.coefficient, each.unscaled, each.dropped) for each in leading}) > 1:
            self._refuse(
                "ranks have clipped or unscaled their gradients differently: do the same on every rank before"
                " step()"
            )

    @contextlib.contextmanager
    def _abandoned_on_failure(self) -> Iterator[None]:
        """Abandon everything in flight if an exchange fails: ``close()`` must not wait for a lost rank."""
        try:
            yield
        except CommunicationFailed:
            self.engine.abandon()
            raise

    def _refuse(self, fault: str) -> None:
        self.engine.abandon()
        raise InvalidUse(fault)
