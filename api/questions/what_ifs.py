"""What-ifs: what a job would gain on other networks and scales."""

import json
import zlib

from pace.api.errors import ContentTooLarge
from pace.api.questions.kind import DoneCount, Question, QuestionKind, ReadLimits, Tell
from pace.api.questions.reading import about_profile, canonical_json
from pace.client.documents import WhatIfRequest, WhatIfResource, WhatIfSummary, example_profile
from pace.documents.profile import parse_profile
from pace.whatif import Grid, what_if
from pace.whatif.results import to_csv
from pace.whatif.target import BRACKETS


def _read(request: WhatIfRequest, limits: ReadLimits) -> Question:
    grid = request.grid
    searched = 0
    if grid.target_efficiency is not None:
        searched = grid.num_cells // max(len(grid.bandwidth_gbps), 1) * BRACKETS
    if grid.num_cells + searched > limits.max_cells:
        counted = f"{grid.num_cells + searched} simulations"
        raise ContentTooLarge(f"the grid asks for {counted}; this service takes at most {limits.max_cells}")
    if request.profile is not None:
        grid.refuse_misfits(request.profile)
    return Question(
        kind=KIND.name,
        options=canonical_json(grid),
        num_steps=grid.num_cells,
        **about_profile(request.profile, request.profile_id, limits),
    )


def _answer(profile_document: bytes, options: str, tell: Tell) -> bytes:
    profile = parse_profile(zlib.decompress(profile_document))
    # One process: the grid shares a machine with solves, and what is cancelled ends with its process.
    result = what_if(profile, Grid.model_validate_json(options), processes=1, progress=DoneCount(tell))
    return json.dumps(result.to_document(), allow_nan=False, separators=(",", ":")).encode()


def _csv(document: bytes) -> bytes:
    return to_csv(json.loads(document)["cells"]).encode()


KIND = QuestionKind(
    name="what-if",
    noun="what-if",
    path="/v1/what-if",
    tag="What-ifs",
    title="Simulate a grid of what-ifs",
    description="Simulate every point of a grid under every policy. An equal request gets the stored answer.",
    example={
        "profile": example_profile(),
        "grid": {"bandwidth_gbps": [1, 10], "workers": [4, 8], "policies": ["ddp", "pace"]},
    },
    request=WhatIfRequest,
    resource=WhatIfResource,
    summary=WhatIfSummary,
    columns={"profile_sha256": "input_sha256", "num_cells": "num_steps"},
    parts={"profile": parse_profile},
    read=_read,
    answer=_answer,
    samples=((example_profile(), canonical_json(Grid(bandwidth_gbps=(1.0,), workers=(2,)))),),
    csv=_csv,
    about_profile=True,
)
