"""Every route of the server with what it takes, on one page, from the server's own OpenAPI document.

python docs/api.py [docs/api.md]
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import armillary
from armillary.serve.app import create_app
from armillary.serve.settings import Settings

HEAD = """# The server's routes

What `armillary serve` answers, from the OpenAPI document that it shows at `/openapi.json`; `make docs` writes
this page. How to use it is in [serving.md](serving.md).

A body is JSON, or a form with the same names where both are said. An unknown name is refused, with the
nearest ones. An error is `{"error": {"message", "type", "param", "code"}}`: 4xx is the request's fault, and
`param` is its place.
"""
SOCKET = "Robots: metadata first; an observation in, a chunk of actions out."


def page(told: dict[str, Any]) -> str:
    """The whole page as Markdown, from an OpenAPI document."""
    return "\n".join([HEAD, *_routes(told), *_schemas(told)]) + "\n"


def document() -> dict[str, Any]:
    """What a server of pocket says of itself."""
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(armillary.load("pocket"), Settings(Path(folder)))
        app.state.service.jobs.store.close()
        return app.openapi()


def _routes(told: dict[str, Any]) -> Iterator[str]:
    yield "| route | what it does | body |\n|---|---|---|"
    for path, methods in told["paths"].items():
        for method, route in methods.items():
            about = " ".join(route["description"].split())
            yield f"| `{method.upper()} {path}` | {about}{_query(route)} | {_body(route)} |"
    yield f"| `WS /v1/policy`, `WS /` | {SOCKET} | msgpack |"


def _query(route: dict[str, Any]) -> str:
    names = [p["name"] for p in route.get("parameters", []) if p["in"] in ("query", "header")]
    return f" ({', '.join(f'`{name}`' for name in names)})" if names else ""


def _body(route: dict[str, Any]) -> str:
    content = route.get("requestBody", {}).get("content", {})
    if not content:
        return ""
    name = next(iter(content.values()))["schema"]["$ref"].rpartition("/")[2]
    forms = {"application/json": "JSON", "multipart/form-data": "form"}
    return f"[{name}](#{name.lower()}), {' or '.join(forms[kind] for kind in content)}"


def _schemas(told: dict[str, Any]) -> Iterator[str]:
    for name, schema in sorted(told["components"]["schemas"].items()):
        if "properties" not in schema or name.endswith("ValidationError"):
            continue
        about = " ".join(schema.get("description", "").split())
        yield f"\n## {name}\n\n{about}\n\n| name | type | meaning |\n|---|---|---|"
        needed = schema.get("required", [])
        for field, shape in schema["properties"].items():
            kind = _kind(shape) + (", needed" if field in needed else "")
            yield f"| `{field}` | {kind} | {_meaning(shape)} |"


def _kind(shape: dict[str, Any]) -> str:
    """A JSON schema in a few words."""
    if "$ref" in shape:
        name = shape["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in shape or "const" in shape:
        return " \\| ".join(f"`{word}`" for word in shape.get("enum", [shape.get("const")]))
    if "anyOf" in shape:
        kinds = [_kind(s) for s in shape["anyOf"] if s.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if shape.get("type") == "array":
        return f"list of {_kind(shape.get('items', {}))}"
    return "file" if shape.get("format") == "binary" else shape.get("type", "anything")


def _meaning(shape: dict[str, Any]) -> str:
    inner = next((s["description"] for s in shape.get("anyOf", ()) if "description" in s), "")
    default = shape.get("default")
    said = "" if default in (None, "") else f" (default `{json.dumps(default)}`)"
    return shape.get("description", inner) + said


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/api.md")
    target.write_text(page(document()), encoding="utf-8")
    print(target)
