"""The page under /docs: Swagger UI from installed files, without any from other hosts."""

import base64
import hashlib
import re

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

from pace.api.http import openapi

PATH = "/docs"
_ASSETS = f"{PATH}/assets"


def add_docs(app: FastAPI) -> str:
    """Add the page and its files to an application; return the page's content security policy."""
    page = get_swagger_ui_html(
        openapi_url=openapi.PATH,
        title=app.title,
        swagger_js_url=f"{_ASSETS}/swagger-ui-bundle.js",
        swagger_css_url=f"{_ASSETS}/swagger-ui.css",
        swagger_favicon_url=f"{_ASSETS}/favicon.png",
    )

    @app.get(PATH, include_in_schema=False)
    async def docs() -> HTMLResponse:
        return page

    app.mount(_ASSETS, StaticFiles(packages=[("fastapi_offline", "static")]))
    return (
        "default-src 'none'; connect-src 'self'; img-src 'self' data:; "
        f"script-src 'self' {' '.join(_hashes(bytes(page.body)))}; style-src 'self' 'unsafe-inline'; "
        "frame-ancestors 'none'"
    )


def _hashes(page: bytes) -> list[str]:
    scripts = re.findall(rb"<script>(.*?)</script>", page, re.DOTALL)
    digests = (hashlib.sha256(script).digest() for script in scripts)
    return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
