"""The oracle that the options name: it solves instances, counts linear programs and explains failures."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from pace.documents.options import Options
from pace.errors import InvalidOptions, SolverFailed
from pace.solver.one_machine import Instance, Solution, solve

LP_SOLVER_PREFIX = "pulp:"


class PricingOracle:
    """Solves instances to optimality, by longest tail first or, if the options say so, by linear programs.

    Attributes
    ----------
    num_programs
        Number of linear programs solved. Each instance is solved once.
    programs_s
        How long that took, in seconds.
    """

    def __init__(self, options: Options) -> None:
        self._slot_s = options.slot_s
        self._lp_solver = options.lp_solver
        self._program = _program_solver(options.lp_solver) if options.oracle == "lp" else None
        self._solved: dict[tuple[bytes, ...], Solution] = {}
        self.num_programs = 0
        self.programs_s = 0.0

    def solve(self, instance: Instance) -> Solution:
        """Return an optimal schedule of an instance. If the options have slot_s, the instance is in slots.

        Raises
        ------
        InvalidOptions
            If there are too many slots for the linear program.
        SolverFailed
            If the LP solver finds no solution.
        """
        if self._program is None:
            return solve(instance)
        known = (instance.ready.tobytes(), instance.processing.tobytes(), instance.tail.tobytes())
        if known not in self._solved:
            start = time.perf_counter()
            with explained(self._slot_s or 0.0):
                self._solved[known] = self._program(instance)
            self.programs_s += time.perf_counter() - start
            self.num_programs += 1
        return self._solved[known]

    def refuse_too_large(self, instances: Iterable[Instance]) -> None:
        """Check that the largest linear program among these instances is small enough.

        The instances are in continuous time. The slot length that the message proposes fits all of them.

        Raises
        ------
        InvalidOptions
            If the largest program has too many variables.
        """
        from pace.solver.linear_program import lp, lp_pulp

        slot_s = self._slot_s or 0.0
        limit = lp.MAX_VARIABLES if self._lp_solver == "scipy" else lp_pulp.MAX_VARIABLES
        most = max(lp.num_variables(instance.in_slots(slot_s)) for instance in instances)
        with explained(slot_s):
            if most > limit:
                raise lp.TooLarge(most, limit)


def _program_solver(name: str) -> Callable[[Instance], Solution]:
    if name == "scipy":
        from pace.solver.linear_program import lp

        return lp.solve
    from pace.solver.linear_program import lp_pulp

    try:
        return lp_pulp.oracle(name.removeprefix(LP_SOLVER_PREFIX) if name != "pulp" else None)
    except lp_pulp.NoSuchSolver as fault:
        raise InvalidOptions(
            f'lp_solver "{name}": PuLP cannot run this solver on this machine, only {fault}: '
            'use one of these, or lp_solver "scipy"'
        ) from None


@contextmanager
def explained(slot_s: float) -> Iterator[None]:
    """Convert errors of the linear programs to PACE's errors, which say what would work."""
    from pace.solver.linear_program import lp

    try:
        yield
    except lp.TooLarge as error:
        # The number of variables is proportional to the number of slots.
        fitting = slot_s * error.variables / error.limit * 1.1
        raise InvalidOptions(
            f"the linear program would have {error.variables:,} variables, but at most {error.limit:,} are "
            f'allowed: use slot_s of {fitting:.2g}, or oracle "jackson"'
        ) from None
    except lp.NoOptimum as error:
        raise SolverFailed(str(error)) from None
