"""What a caller may ask of the optimiser; shared by the Python API, the command line and the service."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from pace.schedule import Fusion, Oracle, Target


class Options(BaseModel):
    """Options of ``optimize``.

    Attributes
    ----------
    oracle
        "jackson" (longest tail first, exact in continuous and in slotted time) or "lp" (the totally
        unimodular linear program; needs `slot_s`).
    fusion
        "optimal", "pace" (the paper's Algorithm 1) or "none".
    target
        Whose semantics to optimise for.
    slot_s
        Length of a slot in seconds; None for continuous time.
    max_group_bytes
        No group of more than one gradient is larger.
    search_calls
        Budget of the local search on profiles with parallel branches, in oracle calls, so that the result
        does not depend on the machine's speed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    oracle: Oracle = "jackson"
    fusion: Fusion = "optimal"
    target: Target = "pace"
    slot_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_group_bytes: Annotated[int, Field(gt=0)] | None = None
    search_calls: Annotated[int, Field(ge=1, le=10_000_000)] = 2000
