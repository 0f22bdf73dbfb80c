"""The workers of one host: their updates until these are committed, and what they wait for."""

from collections.abc import Callable
from dataclasses import dataclass

from pace.runtime.event_log import log
from pace_fabric.runtime.byte_store import ByteStore, KeptBytes
from pace_fabric.runtime.connection import FabricLink, Incoming
from pace_fabric.runtime.formats.number_formats import Data
from pace_fabric.runtime.formats.update_forms import misfit
from pace_fabric.runtime.messages import (
    ComputingNotice,
    DeliveryOrder,
    Message,
    ModelCall,
    ModelWanted,
    PushCall,
    ReductionNotice,
    RefusalOrder,
    TicketOrder,
    TransferIntro,
    UpdateNotice,
)
from pace_fabric.runtime.shards import whole_of
from pace_fabric.runtime.update_records import HeldUpdate


@dataclass(slots=True)
class _Push:
    call: PushCall
    link: FabricLink


class LocalWorkers:
    """Pushes and requests of this host's workers; only the daemon's thread calls it.

    Parameters
    ----------
    name
        Name of this host.
    tell
        Sends a notice to the scheduler.

    Attributes
    ----------
    updates
        Updates that this host keeps for the server or the replica.
    """

    def __init__(self, name: str, store: ByteStore, tell: Callable[[Message], None]) -> None:
        self._name, self._store, self._tell = name, store, tell
        self.updates: dict[str, HeldUpdate] = {}
        self._pushes: dict[str, _Push] = {}
        self._expected: dict[tuple[FabricLink, str], PushCall] = {}
        self._getters: list[tuple[FabricLink, ModelCall]] = []
        self._computing: dict[FabricLink, int] = {}
        self._shards: dict[str, dict[int, KeptBytes]] = {}

    # What workers say.

    def answer(self, link: FabricLink, message: Message) -> None:
        """Take a worker's call."""
        match message:
            case PushCall():
                self._expected[link, f"u/{message.update.id}"] = message
            case ModelCall():
                self._getters.append((link, message))
                self._want()
            case _:
                log.warning("pace.fabric_message_ignored", host=self._name, kind=message.kind)

    def accept(self, link: FabricLink, incoming: Incoming) -> bool:
        """Keep an update that was announced; return whether it was."""
        call = self._expected.pop((link, incoming.intro.key), None)
        if call is None:
            return False
        update = call.update
        reason = self._refusal(update, incoming.data)
        if reason is not None:
            link.send(TicketOrder(update=update.id, outcome="failed", reason=reason))
            return True
        self._store.own(f"u/{update.id}", incoming.data, update.version, update.form)
        self._pushes[update.id] = _Push(call, link)
        if call.round is not None:
            self._notify_reduction(call)
            return True
        self.updates[update.id] = update
        self._tell(UpdateNotice(update=update))
        if self._computing.pop(link, None) is not None:
            self._tell_computing()
        return True

    def _refusal(self, update: HeldUpdate, data: Data) -> str | None:
        """Return why an update cannot be kept; None if it can."""
        if update.id in self.updates or update.id in self._pushes:
            return "an update with this id is here already"
        return misfit(update, data)

    def forget(self, link: FabricLink) -> None:
        """A worker is gone; what it has pushed stays."""
        self._getters = [each for each in self._getters if each[0] is not link]
        if self._computing.pop(link, None) is not None:
            self._tell_computing()
        self._expected = {at: call for at, call in self._expected.items() if at[0] is not link}

    # What the scheduler is told.

    def repeat(self) -> None:
        """Tell a scheduler that is new what workers wait for."""
        for push in self._pushes.values():
            if push.call.round is not None:
                self._notify_reduction(push.call)
        self._tell_computing()
        self._want()

    def _tell_computing(self, delivered: str = "") -> None:
        self._tell(ComputingNotice(versions=tuple(self._computing.values()), delivered=delivered))

    def _notify_reduction(self, call: PushCall) -> None:
        assert call.round is not None
        self._tell(ReductionNotice(round=call.round, members=call.members, update=call.update))

    def _want(self) -> None:
        if self._getters:
            training = sum(call.training for _, call in self._getters)
            self._tell(
                ModelWanted(
                    at_least=min(call.at_least for _, call in self._getters),
                    training=training,
                    reading=len(self._getters) - training,
                )
            )

    # What the scheduler orders.

    def deliver(self, order: DeliveryOrder) -> None:
        """Hand a model, or the mean of a round, to the workers that wait for it."""
        kept = self._store.get(order.key)
        if kept is None:
            if order.round is None:
                self._tell_computing(self._model_key(order.key))
            return
        if order.shards > 1:
            kept = self._joined(order.key, kept)
            if kept is None:
                return
        if order.round is not None:
            for update, push in list(self._pushes.items()):
                if push.call.round == order.round:
                    self._hand_over(push.link, push.call.number, order.key, kept)
                    del self._pushes[update]
                    self.release(update)
        else:
            left: list[tuple[FabricLink, ModelCall]] = []
            most = len(self._getters) if order.most is None else order.most
            for link, call in self._getters:
                if call.at_least > order.version or (call.training and most <= 0):
                    left.append((link, call))
                    continue
                self._hand_over(link, call.number, order.key, kept)
                if call.training:
                    self._computing[link] = kept.version
                    most -= 1
            self._getters = left
            self._tell_computing(self._model_key(order.key))
            self._want()

    @staticmethod
    def _model_key(key: str) -> str:
        """Return the key of a model, whose shards have keys of their own."""
        place = whole_of(key)
        return key if place is None else place[0]

    def _joined(self, key: str, kept: KeptBytes) -> KeptBytes | None:
        """Return a model once all its shards are here."""
        place = whole_of(key)
        assert place is not None
        whole, shard, shards = place
        found = self._shards.setdefault(whole, {})
        found[shard] = kept
        if len(found) < shards:
            return None
        del self._shards[whole]
        for older in list(self._shards)[:-8]:  # of deliveries that were given up
            del self._shards[older]
        if len({each.version for each in found.values()}) > 1:
            log.error("pace.fabric_shard_versions_differ", versions=[each.version for each in found.values()])
        whole_data = bytearray(b"".join(found[each].data for each in range(shards)))
        return KeptBytes(whole_data, kept.version, form=kept.form)

    def _hand_over(self, link: FabricLink, number: int, key: str, kept: KeptBytes) -> None:
        size, version = len(kept.data), kept.version
        intro = TransferIntro(
            transfer=number, key=key, size_bytes=size, version=version, host=self._name, form=kept.form
        )
        link.send_tensor(intro, memoryview(kept.data))

    def end_ticket(self, order: TicketOrder) -> None:
        """Tell a worker how its update ended; a committed one stays until it is released."""
        push = self._pushes.pop(order.update, None)
        if push is not None:
            push.link.send(order)
        held = self.updates.get(order.update)
        if held is not None and order.outcome == "committed":
            self.updates[order.update] = held.model_copy(update={"committed": True})
        else:
            self.release(order.update)

    def fail_round(self, order: RefusalOrder) -> None:
        """End the tickets of a round that cannot be."""
        for update, push in list(self._pushes.items()):
            if push.call.round == order.round:
                self.end_ticket(TicketOrder(update=update, outcome="failed", reason=order.reason))

    def fail_all(self, reason: str) -> None:
        """End the tickets of all updates: there is no scheduler."""
        for update in [each for each in self._pushes if self._pushes[each].call.update.id == each]:
            self.end_ticket(TicketOrder(update=update, outcome="failed", reason=reason, version=None))

    def release(self, update: str) -> None:
        """Keep an update no longer."""
        self.updates.pop(update, None)
        self._store.remove(f"u/{update}")
