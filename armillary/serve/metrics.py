"""`/metrics`: counts for Prometheus, kept by the application and nowhere else."""

import time
from collections.abc import Iterable

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from armillary.serve.service import Service

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """Requests by route and status, with their time."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        names = ("method", "route", "status")
        self.requests = Counter("armillary_requests", "Requests answered.", names, registry=self.registry)
        self.seconds = Histogram(
            "armillary_request_seconds",
            "Seconds a request took.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.registry.register(_World(service))

    def routes(self) -> APIRouter:
        router = APIRouter()

        @router.get("/metrics")
        async def metrics() -> Response:
            """Counts and times, for Prometheus."""
            return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

        return router


class _World(Collector):
    """What the worker has done and has before it."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        worker = self._service.worker
        yield CounterMetricFamily("armillary_denoise_steps", "Denoising steps.", worker.steps)
        yield CounterMetricFamily("armillary_tokens", "Tokens written.", worker.tokens)
        yield GaugeMetricFamily("armillary_making", "Work that is denoising.", worker.making)
        yield GaugeMetricFamily("armillary_waiting", "Work that was not begun.", worker.waiting)
        yield GaugeMetricFamily("armillary_talking", "Answers being written.", worker.talking)


class Timed:
    """Counts every request, refused ones as well."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), "none"

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(scope["method"], route, status).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - started)
