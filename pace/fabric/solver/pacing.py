"""When a worker may begin its next computation, so that its update is not late when it is done."""


def may_begin(num_before: int, delay_bound: int) -> bool:
    """Return whether an update whose computation begins now is expected to keep its delay bound.

    Parameters
    ----------
    num_before
        Updates that are under way (computed from here on, waiting, or planned) and are expected to be
        committed before this one would be.
    """
    return num_before < delay_bound
