"""What sync plans add to the service's interface: a tag, examples, and a view of the web page."""

from pathlib import Path

from pace.api.http.pack_parts import HttpPart

_FOLDER = Path(__file__).parent
HTTP = HttpPart(
    name="sync",
    tags={"Sync plans": "Plan how new weights reach rollout engines, and plan streaming DiLoCo."},
    examples=_FOLDER / "examples.json",
    web=_FOLDER / "web",
    views={"weights": "Weights"},
    answers={"sync": ("weights", "plan")},
)
