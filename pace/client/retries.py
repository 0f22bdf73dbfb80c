"""When the client asks the service again, and after how long."""

import tenacity

from pace.errors import ServiceUnavailable

_backoff = tenacity.wait_random_exponential(multiplier=0.1, max=2)


class TryAgain(ServiceUnavailable):
    """The service cannot answer now, but may after a delay.

    Attributes
    ----------
    after_s
        The delay in seconds that the service asks for.
    """

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


def pause(state: tenacity.RetryCallState) -> float:
    """Return the seconds to wait before the next attempt: a random time, and what the service asks for."""
    error = None if state.outcome is None else state.outcome.exception()
    return _backoff(state) + (error.after_s if isinstance(error, TryAgain) else 0.0)
