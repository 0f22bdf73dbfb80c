"""What predictions add to the service's interface: a tag, examples, and a view of the web page."""

from pathlib import Path

from pace.api.http.pack_parts import HttpPart

_FOLDER = Path(__file__).parent
HTTP = HttpPart(
    name="servers",
    tags={"Predictions": "Predict throughput of training with parameter servers."},
    examples=_FOLDER / "examples.json",
    web=_FOLDER / "web",
    views={"servers": "Servers"},
    answers={"prediction": ("servers", "prediction")},
)
