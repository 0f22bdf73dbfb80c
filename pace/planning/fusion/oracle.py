"""The oracle that options ask for: what prices groups, counts its programs and explains its refusals."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from pace.documents.options import Options
from pace.errors import InvalidOptions, SolverFailed
from pace.solver import jackson
from pace.solver.instance import Instance, Solution

LP_SOLVER_PREFIX = "pulp:"


class PricingOracle:
    """Solves instances to optimality: longest tail first, or the linear program where options name it.

    Attributes
    ----------
    num_programs
        How many linear programs were solved; an instance that comes again is not solved again.
    programs_s
        How long that took.
    """

    def __init__(self, options: Options) -> None:
        self._slot_s = options.slot_s
        self._lp_solver = options.lp_solver
        self._program = _program_solver(options.lp_solver) if options.oracle == "lp" else None
        self._solved: dict[tuple[bytes, ...], Solution] = {}
        self.num_programs = 0
        self.programs_s = 0.0

    def solve(self, instance: Instance) -> Solution:
        """Return an optimal schedule of an instance, which is in slots where options give their length.

        Raises
        ------
        InvalidOptions
            If slots are too many for the linear program.
        SolverFailed
            If its solver gives no answer.
        """
        if self._program is None:
            return jackson.solve(instance)
        known = (instance.ready.tobytes(), instance.processing.tobytes(), instance.tail.tobytes())
        if known not in self._solved:
            start = time.perf_counter()
            with explained(self._slot_s or 0.0):
                self._solved[known] = self._program(instance)
            self.programs_s += time.perf_counter() - start
            self.num_programs += 1
        return self._solved[known]

    def refuse_too_large(self, instances: Iterable[Instance]) -> None:
        """Refuse slots for the largest program of instances in continuous time, so that one length fits all.

        Raises
        ------
        InvalidOptions
            If that program is too large.
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
            f'lp_solver "{name}": PuLP cannot run this solver here, it can run {fault}; '
            'use one of those, or lp_solver "scipy"'
        ) from None


@contextmanager
def explained(slot_s: float) -> Iterator[None]:
    """Turn what the linear programs raise into errors that say what would work."""
    from pace.solver.linear_program import lp

    try:
        yield
    except lp.TooLarge as error:
        # Variables grow with the number of slots, so the length scales with their excess.
        fitting = slot_s * error.variables / error.limit * 1.1
        raise InvalidOptions(
            f"the linear program would have {error.variables:,} variables of at most {error.limit:,}: "
            f'slot_s of {fitting:.2g} would fit, or use oracle "jackson"'
        ) from None
    except lp.NoOptimum as error:
        raise SolverFailed(str(error)) from None
