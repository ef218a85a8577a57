"""The playground at `/`: one page, its script and its style, as they lie in `page/`.

The page brings everything with it and may speak to this server alone: its policy says so to the browser.
"""

from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response

from armillary.serve.service import Service

FOLDER = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; "
        "style-src 'self' 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def routes(_service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def index() -> Response:
        return _file("index.html")

    @router.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        return _file(name)

    return router


def _file(name: str) -> Response:
    """One of the files that lie in the folder, and nothing else."""
    if name not in {path.name for path in FOLDER.iterdir()}:
        raise HTTPException(404, f"the page has no part {name!r}")
    path = FOLDER / name
    return FileResponse(path, media_type=KINDS.get(path.suffix), headers=HEADERS)
