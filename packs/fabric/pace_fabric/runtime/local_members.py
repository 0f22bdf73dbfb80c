"""Members of groups on one host: their calls, their states for newcomers, and the rounds they wait for."""

from collections.abc import Callable
from dataclasses import dataclass

from pace_fabric.runtime.byte_store import ByteStore, KeptBytes
from pace_fabric.runtime.connection import FabricLink, Incoming
from pace_fabric.runtime.formats.update_forms import misfit
from pace_fabric.runtime.messages import (
    AdmissionOrder,
    GroupAnswer,
    JoinCall,
    LeaveCall,
    MembershipNotice,
    Message,
    ReductionNotice,
    RefusalOrder,
    RoundCall,
    StateCall,
    StateNotice,
    StateOrder,
    TransferIntro,
)


@dataclass(slots=True)
class _Member:
    """A worker that has joined a group, or wants to; `round` is the number of its next round."""

    link: FabricLink
    call: JoinCall
    joined: bool = False
    round: int = 0


class LocalMembers:
    """Calls of this host's members; only the daemon's thread calls it.

    Parameters
    ----------
    tell
        Sends a notice to the scheduler.
    """

    def __init__(self, name: str, store: ByteStore, tell: Callable[[Message], None]) -> None:
        self._name, self._store, self._tell = name, store, tell
        self._members: dict[tuple[str, str], _Member] = {}
        self._expected: dict[tuple[FabricLink, int], RoundCall | StateCall] = {}
        self._waiting: dict[tuple[str, str], tuple[FabricLink, RoundCall]] = {}
        self._states = 0

    # What workers say.

    def answer(self, link: FabricLink, message: Message) -> bool:
        """Take a worker's call; return whether it is one of a group."""
        match message:
            case JoinCall():
                self._members[message.group, message.member] = _Member(link, message)
                self._notify(message, "join", message.rounds)
            case LeaveCall():
                self._forget(message.group, message.member)
            case StateCall():
                self._expected[link, message.number] = message
            case RoundCall() if message.update is not None:
                self._expected[link, message.number] = message
            case RoundCall():
                self._take_part(link, message)
            case _:
                return False
        return True

    def accept(self, link: FabricLink, incoming: Incoming) -> bool:
        """Keep an update or a state that was announced; return whether it was."""
        call = self._expected.pop((link, incoming.intro.transfer), None)
        if call is None or incoming.intro.key != key_of(call):
            return False
        if isinstance(call, StateCall):
            self._states += 1
            key = f"g/{self._name}/{self._states}"
            self._store.put(key, incoming.data, call.round)
            self._tell(
                StateNotice(
                    group=call.group,
                    member=call.member,
                    round=call.round,
                    key=key,
                    size_bytes=len(incoming.data),
                )
            )
            return True
        update = call.update
        assert update is not None
        reason = misfit(update, incoming.data)
        if reason is not None:
            link.send(GroupAnswer(number=call.number, reason=reason))
            return True
        self._store.own(f"u/{update.id}", incoming.data, update.version, update.form)
        self._take_part(link, call)
        return True

    def _take_part(self, link: FabricLink, call: RoundCall) -> None:
        self._stop_waiting((call.group, call.member))
        self._waiting[call.group, call.member] = link, call
        self._notify_round(call)

    def forget(self, link: FabricLink) -> None:
        """A worker is gone: it is no member any longer, and what it gave to a round stays."""
        for group, member in [each for each, found in self._members.items() if found.link is link]:
            self._forget(group, member)
        self._expected = {at: call for at, call in self._expected.items() if at[0] is not link}

    def _forget(self, group: str, member: str) -> None:
        found = self._members.pop((group, member), None)
        if found is not None:
            self._notify(found.call, "leave", found.round)

    # What the scheduler is told.

    def repeat(self) -> None:
        """Tell a scheduler that is new who is here, and who waits for a round."""
        for found in self._members.values():
            rounds = found.round if found.joined else found.call.rounds
            self._notify(found.call, "stay" if found.joined else "join", rounds)
        for _, call in self._waiting.values():
            self._notify_round(call)

    def _notify(self, call: JoinCall, event: str, rounds: int) -> None:
        self._tell(
            MembershipNotice.model_validate(
                {
                    "group": call.group,
                    "member": call.member,
                    "event": event,
                    "terms": call.terms,
                    "rounds": rounds,
                }
            )
        )

    def _notify_round(self, call: RoundCall) -> None:
        self._tell(
            ReductionNotice(round=round_of(call), update=call.update, group=call.group, member=call.member)
        )

    # What the scheduler orders.

    def admit(self, order: AdmissionOrder) -> None:
        """Tell a worker that it is a member, with the others' state if they have begun."""
        found = self._members.get((order.group, order.member))
        if found is None or found.joined:
            return
        kept = None if order.key is None else self._store.get(order.key)
        if order.key is not None and kept is None:  # a new scheduler is told, and the state is sent again
            self._notify(found.call, "join", found.call.rounds)
            return
        if order.reason:
            del self._members[order.group, order.member]
        found.joined, found.round = True, order.round
        number = found.call.number
        if kept is None:
            found.link.send(GroupAnswer(number=number, round=order.round, reason=order.reason))
            return
        assert order.key is not None
        size = len(kept.data)
        intro = TransferIntro(
            transfer=number, key=order.key, size_bytes=size, version=order.round, host=self._name
        )
        found.link.send_tensor(intro, memoryview(kept.data))

    def ask_state(self, order: StateOrder) -> None:
        """Ask a member for its state; it gives none unless it waits for the round."""
        found = self._members.get((order.group, order.member))
        if found is not None:
            found.link.send(order)

    def deliver(self, round_: str, key: str, kept: KeptBytes) -> None:
        """Hand the mean of a round to the members that wait for it."""
        for at, (link, call) in list(self._waiting.items()):
            if round_of(call) != round_:
                continue
            intro = TransferIntro(
                transfer=call.number,
                key=key,
                size_bytes=len(kept.data),
                version=call.round,
                host=self._name,
                form=kept.form,
            )
            link.send_tensor(intro, memoryview(kept.data))
            self._stop_waiting(at)
            found = self._members.get(at)
            if found is not None:
                found.round = call.round + 1

    def refuse(self, order: RefusalOrder) -> None:
        """End the calls of a round that cannot be."""
        for at, (link, call) in list(self._waiting.items()):
            if round_of(call) == order.round and order.member in (None, call.member):
                answer = GroupAnswer(number=call.number, reason=order.reason, missed=order.missed)
                link.send(answer)
                self._stop_waiting(at)
                if order.missed:
                    self._members.pop(at, None)

    def fail_all(self, reason: str) -> None:
        """End all calls: there is no scheduler."""
        for at, (link, call) in list(self._waiting.items()):
            link.send(GroupAnswer(number=call.number, reason=reason))
            self._stop_waiting(at)
        for at, found in list(self._members.items()):
            if not found.joined:
                found.link.send(GroupAnswer(number=found.call.number, reason=reason))
                del self._members[at]

    def _stop_waiting(self, at: tuple[str, str]) -> None:
        found = self._waiting.pop(at, None)
        if found is not None and found[1].update is not None:
            self._store.remove(f"u/{found[1].update.id}")


def round_of(call: RoundCall) -> str:
    """Return the name of a round, as the scheduler knows it."""
    return f"{call.group}:{call.round}"


def key_of(call: RoundCall | StateCall) -> str:
    """Return the key of the transfer that follows a call."""
    if isinstance(call, StateCall):
        return f"g/{call.group}:{call.round}"
    assert call.update is not None
    return f"u/{call.update.id}"
