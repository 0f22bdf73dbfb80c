"""Routes by which others watch the service."""

from fastapi import APIRouter

from pace.api.documents import Health
from pace.version import __version__

router = APIRouter()


@router.get("/healthz", summary="Is the service alive?")
async def healthz() -> Health:
    """Answer as long as the event loop runs, whatever else does not."""
    return Health(version=__version__)
