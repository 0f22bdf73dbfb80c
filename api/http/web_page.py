"""The web page at /: static files of ``api/web``, which load nothing from elsewhere."""

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

PATH = "/"
_FILES = Path(__file__).parents[1] / "web"
_ASSETS = "/web"
# Revalidated at every visit, so that an update of the service shows at once.
_FRESH = {"Cache-Control": "no-cache"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class _FreshFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_FRESH)
        return response


def add_page(app: FastAPI) -> str:
    """Add the page and its files to an application; return the page's content security policy."""

    @app.get(PATH, include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_FILES / "index.html", headers=_FRESH)

    app.mount(_ASSETS, _FreshFiles(directory=_FILES))
    return _POLICY
