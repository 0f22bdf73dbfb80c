"""The web page at /, and the page under /docs: static files, which load nothing from other hosts."""

import base64
import hashlib
import json
import re
from pathlib import Path

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from pace.api.http import openapi
from pace.api.http.pack_parts import http_parts

PAGE, DOCS = "/", "/docs"
_FILES = Path(__file__).parents[1] / "web"
_ASSETS, _DOCS_ASSETS = "/web", f"{DOCS}/assets"
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

    @app.get(PAGE, include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_FILES / "index.html", headers=_FRESH)

    packs = [
        {"view": view, "title": title, "module": f"./packs/{part.name}/{view}.js"}
        for part in http_parts()
        for view, title in part.views.items()
    ]
    answers = {kind: shown for part in http_parts() for kind, shown in part.answers.items()}

    @app.get(f"{_ASSETS}/packs.js", include_in_schema=False)
    async def views_of_packs() -> Response:
        script = f"export const PACKS = {json.dumps(packs)};\nexport const ANSWERS = {json.dumps(answers)};\n"
        return Response(script, headers=_FRESH, media_type="text/javascript")

    for part in http_parts():
        app.mount(f"{_ASSETS}/packs/{part.name}", _FreshFiles(directory=part.web))
    app.mount(_ASSETS, _FreshFiles(directory=_FILES))
    return _POLICY


def add_docs(app: FastAPI) -> str:
    """Add Swagger UI, from installed files, to an application; return the page's content security policy."""
    # Relative to the page, as all links: a proxy may serve the service under a path of its own.
    assets = _DOCS_ASSETS.removeprefix("/")
    page = get_swagger_ui_html(
        openapi_url=openapi.PATH.removeprefix("/"),
        title=app.title,
        swagger_js_url=f"{assets}/swagger-ui-bundle.js",
        swagger_css_url=f"{assets}/swagger-ui.css",
        swagger_favicon_url=f"{assets}/favicon.png",
    )

    @app.get(DOCS, include_in_schema=False)
    async def docs() -> HTMLResponse:
        return page

    app.mount(_DOCS_ASSETS, StaticFiles(packages=[("fastapi_offline", "static")]))
    return (
        "default-src 'none'; connect-src 'self'; img-src 'self' data:; "
        f"script-src 'self' {' '.join(_hashes(bytes(page.body)))}; style-src 'self' 'unsafe-inline'; "
        "frame-ancestors 'none'"
    )


def _hashes(page: bytes) -> list[str]:
    scripts = re.findall(rb"<script>(.*?)</script>", page, re.DOTALL)
    digests = (hashlib.sha256(script).digest() for script in scripts)
    return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
