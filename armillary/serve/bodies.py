"""A request's body, JSON or a form, as one of the schemas; what cannot be read names its place."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from armillary.errors import BadRequest, nearest
from armillary.serve.schemas import Body

Read = TypeVar("Read", bound=Body)
MAX_FILES, MAX_FIELDS = 16, 128
JSON, FORM, PLAIN_FORM = "application/json", "multipart/form-data", "application/x-www-form-urlencoded"
REF = "#/components/schemas/{model}"


async def read_body(request: Request, kind: type[Read]) -> Read:
    """The body by its content type. Raises BadRequest, or HTTPException 415 for another content type."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if media == JSON or media.endswith("+json"):
            raw = await request.body()
            return await run_in_threadpool(kind.model_validate_json, raw, strict=True)
        if media == PLAIN_FORM and (await request.body()).startswith(b"{"):  # as curl's -d alone says
            raise HTTPException(415, f"JSON is sent with the header content-type: {JSON}")
        if media in (FORM, PLAIN_FORM):
            return kind.model_validate(await _form(request))
    except ValidationError as error:
        _refuse(kind, error)
    raise HTTPException(415, "a body is application/json or multipart/form-data")


async def read_upload(request: Request, kind: type[Read]) -> tuple[Read, str]:
    """A form's body, and the name of its file. Raises like `read_body`."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise HTTPException(415, "a body is multipart/form-data")
    async with _opened(request) as form:
        files = [value.filename for value in form.values() if isinstance(value, UploadFile)]
        body = await read_body(request, kind)  # reads the same form
    return body, (files[0] or "")[:255]


def _opened(request: Request) -> Any:
    """A form; its files lie in memory or in temporary files that go with the request."""
    return request.form(max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=2**20)


async def _form(request: Request) -> dict[str, Any]:
    """A form's fields; files as bytes, fields that come several times (or end in []) as lists."""
    found: dict[str, Any] = {}
    async with _opened(request) as form:
        for name in form:
            values = [await v.read() if isinstance(v, UploadFile) else v for v in form.getlist(name)]
            is_list = name.endswith("[]") or len(values) > 1
            found[name.removesuffix("[]")] = values if is_list else values[0]
    return found


def _refuse(kind: type[Body], error: ValidationError) -> NoReturn:
    """The first fault as a BadRequest."""
    first = error.errors(include_url=False)[0]
    where = [p for p in first["loc"] if not (isinstance(p, str) and ("[" in p or p in ("str", "bytes")))]
    name = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in where).lstrip(".") or "body"
    given = first.get("input") if where else "..."
    if first["type"] == "extra_forbidden" and len(where) == 1:
        close = " or ".join(nearest(where[0], kind.model_fields))
        raise BadRequest(name, given, f"there is no such option here; nearest: {close}") from None
    if first["type"] == "missing":
        raise BadRequest(name, None, "is needed") from None
    raise BadRequest(name, given, first["msg"]) from None


@contextmanager
def renamed(names: Mapping[str, str]) -> Generator[None]:
    """What goes wrong under it names the fields of the API: `names` maps the library's to those."""
    try:
        yield
    except BadRequest as error:
        first, dot, rest = error.field.partition(".")
        raise BadRequest(names.get(first, first) + dot + rest, error.value, error.message) from None


def documented(kind: type[Body], *kinds: str) -> dict[str, Any]:
    """What OpenAPI says about a body, JSON or a form or either; `app.describe` puts the schema there."""
    kinds = kinds or (JSON, FORM)
    content = {media: {"schema": {"$ref": REF.format(model=kind.__name__)}} for media in kinds}
    return {"requestBody": {"required": True, "content": content}}
