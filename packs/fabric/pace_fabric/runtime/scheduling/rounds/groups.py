"""Groups whose members come and go: who is waited for, for how long, and who gives newcomers a state.

A group begins when all its members have joined, or its quorum once a deadline is over. Every round waits for
all that are members, but for no more than one deadline from the first that takes part. Whoever has missed a
round is no member any longer, and may join again. A newcomer gets the state of a member that waits in the
open round, as it was before that round, and takes the mean of the round.
"""

from dataclasses import dataclass, field

from pace.runtime.event_log import log
from pace_fabric.runtime.messages import (
    AdmissionOrder,
    ForgetOrder,
    GroupTerms,
    MembershipNotice,
    ReductionNotice,
    RefusalOrder,
    StateNotice,
    StateOrder,
)
from pace_fabric.runtime.scheduling.commit_groups import FabricUpdate
from pace_fabric.runtime.scheduling.known_hosts import KnownHosts
from pace_fabric.runtime.scheduling.model_requests import spread
from pace_fabric.runtime.scheduling.rounds.means import MeanTransfers

# A scheduler that was started again waits so long for hosts to call before it ends a round.
_SETTLE_S = 3.0
# A round that failed is tried again after this time.
_AGAIN_S = 0.5
_MISSED = "is no member of {group} any longer: it was gone, or a round did not wait for it; join again"


@dataclass(slots=True)
class _Joining:
    host: str
    rounds: int
    since_s: float


@dataclass(slots=True)
class _Arrival:
    host: str
    update: FabricUpdate | None


@dataclass(slots=True)
class _StateTransfer:
    """A state on its way to newcomers; `key` is empty until the provider has given it."""

    provider: str
    round: int
    key: str = ""
    host: str = ""
    newcomers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Group:
    """A group; round 0 is open until it begins.

    Attributes
    ----------
    members, joining
        Who belongs to it, and who wants to.
    arrived
        Who takes part in the open round.
    restored
        Whether an earlier scheduler began it, and this one has ended no round yet.
    idle_until_s
        When its next round may end at the earliest.
    """

    name: str
    terms: GroupTerms
    idle_until_s: float
    restored: bool = False
    round: int = 0
    members: dict[str, str] = field(default_factory=dict)
    joining: dict[str, _Joining] = field(default_factory=dict)
    arrived: dict[str, _Arrival] = field(default_factory=dict)
    opened_s: float | None = None
    state: _StateTransfer | None = None
    attempts: int = 0

    @property
    def round_name(self) -> str:
        """Name of the open round, as hosts know it."""
        return f"{self.name}:{self.round}"

    def is_over(self, since_s: float | None, now_s: float) -> bool:
        """Return whether a deadline has passed since a time."""
        limit = self.terms.deadline_s
        return since_s is not None and limit is not None and now_s >= since_s + limit


class Groups:
    """All groups, and the rounds whose mean is under way."""

    def __init__(self, known: KnownHosts) -> None:
        self._known = known
        self._groups: dict[str, _Group] = {}
        self._under_way: dict[str, MeanTransfers] = {}

    def status(self) -> dict[str, dict[str, int]]:
        """Return what people want to know of each group."""
        return {
            group.name: {
                "round": group.round,
                "members": len(group.members),
                "joining": len(group.joining),
                "arrived": len(group.arrived),
            }
            for group in self._groups.values()
        }

    # What hosts say.

    def hear(self, host: str, notice: MembershipNotice) -> None:
        """Take in that a worker joins, stays or leaves."""
        now = self._known.now()
        group = self._groups.get(notice.group)
        if group is None:
            if notice.event == "leave":
                return
            group = self._groups[notice.group] = _Group(notice.group, notice.terms, now)
        if notice.event == "leave":
            self._leave(group, notice.member)
        elif notice.terms != group.terms:
            others = f"others with {_terms(group.terms)}"
            reason = f"{notice.member} joins {group.name} with {_terms(notice.terms)}, {others}"
            self._known.tell(host, AdmissionOrder(group=group.name, member=notice.member, reason=reason))
        elif notice.event == "join":
            self._leave(group, notice.member)
            group.joining[notice.member] = _Joining(host, notice.rounds, now)
        else:
            self._stay(group, host, notice, now)

    def _stay(self, group: _Group, host: str, notice: MembershipNotice, now_s: float) -> None:
        """Take in a member again whose host has called anew."""
        if not group.round:
            group.round, group.restored, group.idle_until_s = notice.rounds, True, now_s + _SETTLE_S
        elif group.restored and notice.rounds > group.round:
            # Some had the mean of the last round already: those who had not begin again from their state.
            for member in list(group.members):
                self._refuse(group, member)
            group.round, group.members, group.arrived, group.opened_s = notice.rounds, {}, {}, None
        if notice.rounds == group.round:
            group.members[notice.member] = host

    def take_part(self, host: str, notice: ReductionNotice) -> None:
        """Take a member into the open round."""
        assert notice.group is not None
        assert notice.member is not None
        group = self._groups.get(notice.group)
        if group is None or notice.member not in group.members or notice.round != group.round_name:
            reason = f"{notice.member} {_MISSED.format(group=notice.group)}"
            order = RefusalOrder(round=notice.round, reason=reason, member=notice.member, missed=True)
            self._known.tell(host, order)
            if group is not None:
                self._leave(group, notice.member)
            return
        sizes = {each.update.held.numbers for each in group.arrived.values() if each.update is not None}
        if notice.update is not None and sizes and notice.update.numbers not in sizes:
            reason = f"{notice.member} has {notice.update.numbers:,} numbers, others {min(sizes):,}"
            self._known.tell(host, RefusalOrder(round=notice.round, reason=reason, member=notice.member))
            return
        update = None
        if notice.update is not None:
            update = FabricUpdate(notice.update, host, notice.update.weight)
        group.arrived[notice.member] = _Arrival(host, update)
        group.opened_s = self._known.now() if group.opened_s is None else group.opened_s

    def give_state(self, host: str, notice: StateNotice) -> None:
        """Send a member's state to all newcomers that wait."""
        group = self._groups.get(notice.group)
        state = None if group is None else group.state
        if (
            group is None
            or state is None
            or (state.provider, state.round, state.key) != (notice.member, notice.round, "")
            or notice.round != group.round
        ):
            self._known.tell(host, ForgetOrder(keys=(notice.key,)))
            return
        state.key, state.host = notice.key, host
        here = {m: j.host for m, j in group.joining.items() if j.host in self._known.hosts}
        state.newcomers = dict(here)

        def settle(target: str, arrived: bool) -> None:
            for member, at in here.items():
                if at == target:
                    self._admit(group, state, member, arrived=arrived)

        spread(
            self._known,
            self._known.view(),
            host,
            sorted(set(here.values())),
            notice.key,
            notice.size_bytes,
            lambda target: settle(target, True),
            lambda target: settle(target, False),
        )

    def _admit(self, group: _Group, state: _StateTransfer, member: str, *, arrived: bool) -> None:
        state.newcomers.pop(member, None)
        joining = group.joining.get(member)
        if arrived and joining is not None and state.round == group.round:
            del group.joining[member]
            group.members[member] = joining.host
            order = AdmissionOrder(group=group.name, member=member, round=group.round, key=state.key)
            self._known.tell(joining.host, order)
            log.info("pace.fabric_member_joined", group=group.name, member=member, round=group.round)
        if not state.newcomers and group.state is state:
            group.state = None

    def lose(self, host: str) -> None:
        """A host is gone, with its workers and what they gave to open rounds."""
        for group in list(self._groups.values()):
            workers = {member: at for member, at in group.members.items() if at == host}
            workers |= {member: joining.host for member, joining in group.joining.items()}
            for member in [member for member, at in workers.items() if at == host]:
                self._leave(group, member)
            for member in [member for member, each in group.arrived.items() if each.host == host]:
                del group.arrived[member]
            if group.state is not None and group.state.host == host:
                group.state = None
        for transfers in list(self._under_way.values()):
            transfers.lose(host)

    def _leave(self, group: _Group, member: str) -> None:
        group.members.pop(member, None)
        group.joining.pop(member, None)
        if group.state is not None:
            group.state.newcomers.pop(member, None)
            given = bool(group.state.key)
            if (group.state.provider == member and not given) or (given and not group.state.newcomers):
                group.state = None

    def _refuse(self, group: _Group, member: str) -> None:
        """Tell a member in the open round that it has missed it."""
        host = group.members.get(member)
        if host is not None and member in group.arrived:
            reason = f"{member} {_MISSED.format(group=group.name)}"
            order = RefusalOrder(round=group.round_name, reason=reason, member=member, missed=True)
            self._known.tell(host, order)

    # What is done after everything that happens.

    def go_on(self) -> None:
        """Begin groups, end rounds, and ask for states, as far as it is time."""
        now = self._known.now()
        for group in list(self._groups.values()):
            if now < group.idle_until_s:
                continue
            if not group.members and not group.arrived:
                self._begin(group, now)
            else:
                self._ask_state(group)
                self._end_round(group, now)
            if not (group.members or group.joining or group.arrived):
                del self._groups[group.name]

    def _begin(self, group: _Group, now_s: float) -> None:
        """Begin, or begin anew where all members are gone, from the state with the most rounds."""
        joining = group.joining
        since = min((each.since_s for each in joining.values()), default=None)
        number = len(joining)
        if number < group.terms.members and not group.is_over(since, now_s):
            return
        if number < group.terms.quorum:
            return
        rounds = max(each.rounds for each in joining.values())
        group.round, group.opened_s, group.state = rounds + 1, None, None
        for member in [member for member, each in joining.items() if each.rounds == rounds]:
            host = group.members[member] = joining.pop(member).host
            self._known.tell(host, AdmissionOrder(group=group.name, member=member, round=group.round))
        log.info("pace.fabric_group_begins", group=group.name, members=len(group.members), round=group.round)

    def _ask_state(self, group: _Group) -> None:
        """Ask a member that waits in the open round for its state, if there are newcomers."""
        if not group.joining or group.state is not None:
            return
        provider = next((m for m in group.arrived if m in group.members), None)
        if provider is None:
            return
        group.state = _StateTransfer(provider, group.round)
        order = StateOrder(group=group.name, member=provider, round=group.round)
        self._known.tell(group.members[provider], order)

    def _end_round(self, group: _Group, now_s: float) -> None:
        """End the open round, if all are there, or the quorum once the deadline is over."""
        parts = [each.update for each in group.arrived.values() if each.update is not None]
        if not parts or len(group.arrived) < group.terms.quorum:
            return
        absent = [member for member in group.members if member not in group.arrived]
        if (absent or group.state is not None) and not group.is_over(group.opened_s, now_s):
            return
        for member in absent:
            log.warning("pace.fabric_member_missed", group=group.name, member=member, round=group.round)
            del group.members[member]
        arrived, group.arrived = group.arrived, {}
        name, round_ = group.round_name, group.round
        group.round, group.opened_s, group.state, group.restored = round_ + 1, None, None, False
        group.attempts += 1

        def ended(reason: str | None) -> None:
            self._under_way.pop(name, None)
            if reason is not None:
                self._open_again(group, round_, arrived, reason)

        takers = {each.host for each in arrived.values() if each.host in self._known.hosts}
        transfers = MeanTransfers(
            self._known, name, group.attempts, parts, takers, tolerant=True, on_end=ended
        )
        self._under_way[name] = transfers
        transfers.start()

    def _open_again(self, group: _Group, round_: int, arrived: dict[str, _Arrival], reason: str) -> None:
        """Go back to a round of which nobody that is there has the mean."""
        log.warning("pace.fabric_round_again", group=group.name, round=round_, reason=reason)
        for member in list(group.members):
            if member not in arrived:
                self._refuse(group, member)
                del group.members[member]
        group.round, group.state = round_, None
        group.arrived = {member: each for member, each in arrived.items() if each.host in self._known.hosts}
        group.opened_s = self._known.now()
        group.idle_until_s = group.opened_s + _AGAIN_S


def _terms(terms: GroupTerms) -> str:
    return f"{terms.members} members, quorum {terms.quorum} and deadline {terms.deadline_s}"
