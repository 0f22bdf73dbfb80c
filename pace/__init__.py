"""PACE: schedules gradient all-reduces so that communication hides behind compute.

``optimize(profile)`` returns the schedule of a profiled training iteration. The service lives in
``pace.api``, the optimizer wrappers in ``pace.runtime``; neither is imported here.
"""

from pace.errors import (
    CommunicationFailed,
    InvalidOptions,
    InvalidProfile,
    InvalidSchedule,
    PaceError,
    ScheduleMismatch,
    ServiceUnavailable,
    SolverFailed,
)
from pace.optimize import optimize
from pace.options import Options
from pace.profile import Gradient, Op, Profile, load_profile, parse_profile
from pace.schedule import Schedule, load_schedule, parse_schedule
from pace.version import __version__

__all__ = [
    "CommunicationFailed",
    "Gradient",
    "InvalidOptions",
    "InvalidProfile",
    "InvalidSchedule",
    "Op",
    "Options",
    "PaceError",
    "Profile",
    "Schedule",
    "ScheduleMismatch",
    "ServiceUnavailable",
    "SolverFailed",
    "__version__",
    "load_profile",
    "load_schedule",
    "optimize",
    "parse_profile",
    "parse_schedule",
]
