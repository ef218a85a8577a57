"""`/v1/files`: pictures and clips that are sent ahead and named in later requests."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from armillary.serve.bodies import FORM, documented, read_upload
from armillary.serve.schemas import FileUpload
from armillary.serve.service import Service


def routes(service: Service) -> APIRouter:
    router, uploads = APIRouter(), service.uploads

    @router.post("/v1/files", openapi_extra=documented(FileUpload, FORM))
    async def upload_file(request: Request) -> dict[str, Any]:
        """Keep a picture or clip; the answer names it."""
        body, filename = await read_upload(request, FileUpload)
        kept = await run_in_threadpool(uploads.add, body.file, filename, body.purpose)
        return kept.shown()

    @router.get("/v1/files")
    async def list_files() -> dict[str, Any]:
        """What was sent ahead and has not expired, the newest first."""
        found = await run_in_threadpool(uploads.list)
        return {"object": "list", "data": [upload.shown() for upload in found], "has_more": False}

    @router.get("/v1/files/{file_id}")
    async def get_file(file_id: str) -> dict[str, Any]:
        """What is known of an upload."""
        upload = uploads.get(file_id)
        if upload is None:
            raise HTTPException(404, f"there is no file {file_id!r}")
        return upload.shown()

    @router.get("/v1/files/{file_id}/content")
    async def get_file_content(file_id: str) -> Response:
        """The upload itself."""
        content = await run_in_threadpool(uploads.read, file_id)
        if content is None:
            raise HTTPException(404, f"there is no file {file_id!r}")
        # Never as a page: whoever uploads it could write one.
        return Response(content, media_type="application/octet-stream")

    @router.delete("/v1/files/{file_id}")
    async def delete_file(file_id: str) -> dict[str, Any]:
        """Forget an upload."""
        if not uploads.delete(file_id):
            raise HTTPException(404, f"there is no file {file_id!r}")
        return {"id": file_id, "object": "file", "deleted": True}

    return router
