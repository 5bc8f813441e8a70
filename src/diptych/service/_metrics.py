"""Metrics for Prometheus, and the access log."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

access_log = logging.getLogger("diptych.access")

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        labels = ("route", "method", "status")
        self.requests = Counter("diptych_requests", "Answered requests.", labels, registry=self.registry)
        self.seconds = Histogram(
            "diptych_request_seconds",
            "Time to answer a request.",
            ("route",),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.open = Gauge("diptych_requests_open", "Requests being answered.", registry=self.registry)
        self.batches = Histogram(
            "diptych_batch_queries",
            "Queries answered by one pass over the index.",
            registry=self.registry,
            buckets=_SIZES,
        )

    def add_gauge(self, name: str, about: str, read: Callable[[], float]) -> None:
        Gauge(name, about, registry=self.registry).set_function(read)

    def render(self) -> bytes:
        return generate_latest(self.registry)


class RequestMonitor:
    """Middleware that counts and logs requests.

    The log has no texts, ids or file names of queries unless ``log_queries`` is set. ``routes`` are those to
    count a request under that was refused before it reached the router.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, routes: Sequence[BaseRoute] = (), log_queries: bool = False
    ) -> None:
        self._app, self._metrics, self._routes, self._log_queries = app, metrics, routes, log_queries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status, size = time.perf_counter(), 500, 0

        async def send_counted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        self._metrics.open.inc()
        try:
            await self._app(scope, receive, send_counted)
        finally:
            self._metrics.open.dec()
            seconds = time.perf_counter() - start
            route = self._route(scope)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.requests.labels(route, method, str(status)).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            if access_log.isEnabledFor(logging.INFO):
                self._log(scope, route, status, size, seconds)

    def _route(self, scope: Scope) -> str:
        # The pattern of a route, not the path: that would make one time series for every id.
        route = scope.get("route") or next(
            (each for each in self._routes if each.matches(scope)[0] is not Match.NONE), None
        )
        return str(getattr(route, "path_format", "unmatched"))

    def _log(self, scope: Scope, route: str, status: int, size: int, seconds: float) -> None:
        client = scope["client"][0] if scope.get("client") else "-"
        queries = scope.get("state", {}).get("queries") if self._log_queries else None
        access_log.info(
            "%s %s %s %d %d bytes %.1f ms%s",
            client,
            scope["method"][:10],
            route,
            status,
            size,
            seconds * 1000,
            f" {json.dumps(queries)}" if queries else "",
        )
