"""What was learned about a training loop. It is kept when the plan changes, to learn nothing twice."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pace.runtime.event_log import log

# After so many rounds in a row with fewer backward passes than expected, expect the most of these rounds.
_PATIENCE = 16

# The most rounds in a row in which nothing is sent before the round is sealed.
_LONGEST_HOLD = 1024


class Usage:
    """How often gradients arrive in a round, and which parameters are used in ways that no gate notices.

    Attributes
    ----------
    arrived
        The gradients in the order in which they became complete in the first round; as keys.
    expected
        How often autograd adds to a gradient before it is complete, by its name.
    learned
        Whether the first round has ended.
    watched
        Whether a round with watched parameters has ended.
    num_gathered
        How often ranks have gathered the whole state of the optimizer.
    at_entry, at_step
        Gradients whose groups must be finished before the model's forward pass, or in ``step()``.
    """

    def __init__(self, backward_passes_per_step: int) -> None:
        self._least = backward_passes_per_step
        self.arrived: dict[str, None] = {}
        self.expected: defaultdict[str, int] = defaultdict(lambda: backward_passes_per_step)
        # The number of rounds in a row with fewer passes than expected, and the most passes in them.
        self._short: dict[str, tuple[int, int]] = {}
        self._hold = 0
        self._wasted = False
        self._times_wasted = 0
        self._told_of_sharing = self._told_of_barrier = False
        self._compiler: str | None = None
        self.num_gathered = 0
        self.learned = False
        self.watched = False
        self.at_entry: frozenset[str] = frozenset()
        self.at_step: frozenset[str] = frozenset()

    def expect(self, passes: int) -> None:
        """Forget how often gradients arrived, and expect them this often."""
        self._least = passes
        self.expected.clear()
        self.expected.default_factory = lambda: passes
        self._short.clear()

    @property
    def eager(self) -> bool:
        """Whether groups are to be sent as soon as their gradients have arrived."""
        return self.learned and not self._hold

    def note_arrival(self, name: str) -> None:
        """Record that autograd has added to a gradient in the first round."""
        self.arrived.pop(name, None)
        self.arrived[name] = None

    def learn_passes(self, passes: Mapping[str, int]) -> None:
        """Record how often each gradient arrived in the first round."""
        self.learned = True
        self.adapt(passes)

    def learn_uses(self, *, at_entry: frozenset[str], at_step: frozenset[str]) -> None:
        """Record the parameters whose use no gate noticed in the first watched round."""
        self.watched = True
        self.at_entry = at_entry
        self.at_step |= at_step

    def need_barrier(self, compiler: str, names: Sequence[str]) -> None:
        """Record that a compiler's code may use any parameter: apply all updates in ``step()``."""
        self.watched = True
        self.at_step = frozenset(names)
        self._compiler = compiler

    def tell_of_barrier(self) -> None:
        """Log, once, that updates which could be pending are not, if there is a compiler's code."""
        if self._compiler is not None and not self._told_of_barrier:
            self._told_of_barrier = True
            log.warning(
                "pace.barrier_mode",
                reason=f"{self._compiler} compiles code that may use parameters without PACE noticing",
            )

    def adapt(self, passes: Mapping[str, int]) -> None:
        """Learn from a round how often each gradient arrives."""
        expected, short = self.expected, self._short
        for name, count in passes.items():
            if count != expected[name] or (short and name in short):
                self._adapt(name, count)

    def _adapt(self, name: str, count: int) -> None:
        expected = self.expected[name]
        if count > expected:
            self.expected[name] = count
        elif 0 < count < expected and expected > self._least:
            rounds, peak = self._short.get(name, (0, 0))
            rounds, peak = rounds + 1, max(peak, count)
            if rounds < _PATIENCE:
                self._short[name] = rounds, peak
                return
            self.expected[name] = max(peak, self._least)
        self._short.pop(name, None)

    def tell_of_sharing(self, names: Sequence[str], rank: int) -> None:
        """Log, once, that the training loop refers to memory of parameters or of their state."""
        if not self._told_of_sharing:
            self._told_of_sharing = True
            log.info(
                "pace.memory_shared",
                rank=rank,
                parameters=", ".join(names[:5]),
                consequence="updates of these parameters are applied in step(), without overlap, because a"
                " variable shares their memory (p.data, a view, a checkpoint's state_dict, a NumPy array):"
                " delete the variable after use, or keep a copy (copy.deepcopy, p.detach().clone())",
            )

    def wasted(self) -> None:
        """Record that a gradient was cleared after it had been sent."""
        self._wasted = True

    def end_round(self, passes: Mapping[str, int]) -> None:
        """Learn from how often each gradient arrived, and decide whether the next round sends early.

        After a gradient was sent in vain, it does not.
        """
        self.adapt(passes)
        if self._wasted:
            self._wasted = False
            self._hold = min(2**self._times_wasted, _LONGEST_HOLD)
            self._times_wasted += 1
        elif self._hold:
            self._hold -= 1
