"""`/health`, `/v1/models`, `/metrics`, and the files that are sent ahead."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from armillary.serve.service import Service


def routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> Response:
        """Is the server fit to work?"""
        fit = service.worker.alive
        return JSONResponse({"status": "healthy" if fit else "unhealthy"}, 200 if fit else 503)

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The model served."""
        return {"object": "list", "data": [_model(service)]}

    @router.get("/v1/models/{model:path}")
    async def model(model: str) -> dict[str, Any]:
        """The model served, by its name."""
        service.check_model(model)
        return _model(service)

    return router


def _model(service: Service) -> dict[str, Any]:
    facts = service.world.facts
    abilities = {
        "sees": facts.sees,
        "draws": facts.draws,
        "sounds": facts.sounds,
        "robots": list(facts.robots),
    }
    usual = {"frames": facts.frames, "fps": facts.fps, "size": f"{facts.size[0]}x{facts.size[1]}"}
    made = {"object": "model", "created": service.started, "owned_by": "armillary", "digest": facts.digest}
    return {"id": facts.model, **made, "abilities": abilities, "usual": usual}
