"""The example profiles under examples/profiles.

``python -m pace.models.bundled examples/profiles`` writes them anew.
"""

import sys
from pathlib import Path

from pace.models import build

_DEVICE_TFLOPS = 8.0
_WORKERS = 8
# Images or tokens for each worker: communication then takes about as long as compute.
_BATCHES = {"vgg16": 64, "resnet50": 32, "transformer": 8192}


def bundled_documents() -> dict[str, bytes]:
    """Return every example profile as JSON by its file name."""
    return {
        f"{name}.json": build(name, device_tflops=_DEVICE_TFLOPS, batch=batch, workers=_WORKERS).to_json()
        for name, batch in _BATCHES.items()
    }


def _write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in bundled_documents().items():
        (folder / name).write_bytes(document)


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
