"""What happens on a server, for its operator: counters for Prometheus, and a log that keeps secrets."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.routing import BaseRoute, Match

from diptych.service._security import App, Message, Receive, Scope, Send

access = logging.getLogger("diptych.access")

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})


class Meter:
    """Counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "diptych_requests", "Requests answered.", ("route", "method", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "diptych_request_seconds",
            "Time to answer a request.",
            ("route",),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.open = Gauge("diptych_requests_open", "Requests being answered.", registry=self.registry)
        self.passes = Histogram(
            "diptych_pass_queries",
            "Queries answered by one pass over an index.",
            registry=self.registry,
            buckets=_SIZES,
        )

    def gauge(self, name: str, about: str, value: Callable[[], float]) -> None:
        """A number that is read when somebody asks."""
        Gauge(name, about, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


class Watch:
    """Counts and logs requests on their way through.

    Parameters
    ----------
    app
        The application.
    meter
        Where they are counted.
    routes
        What a request that was turned away on its way may have asked for.
    log_queries
        Log what was asked as well, not only that something was.
    """

    def __init__(
        self, app: App, meter: Meter, routes: Sequence[BaseRoute] = (), log_queries: bool = False
    ) -> None:
        self._app, self._meter, self._routes, self._log_queries = app, meter, routes, log_queries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status, size = time.perf_counter(), 500, 0

        async def sending(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        self._meter.open.inc()
        try:
            await self._app(scope, receive, sending)
        finally:
            self._meter.open.dec()
            taken = time.perf_counter() - start
            route = self._route(scope)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._meter.requests.labels(route, method, str(status)).inc()
            self._meter.seconds.labels(route).observe(taken)
            if access.isEnabledFor(logging.INFO):
                self._log(scope, route, status, size, taken)

    def _route(self, scope: Scope) -> str:
        """The pattern of a route, never its path: that would make a series of every id."""
        route = scope.get("route") or next(
            (each for each in self._routes if each.matches(scope)[0] is not Match.NONE), None
        )
        return str(getattr(route, "path_format", "unmatched"))

    def _log(self, scope: Scope, route: str, status: int, size: int, taken: float) -> None:
        who = scope["client"][0] if scope.get("client") else "-"
        asked = ""
        if self._log_queries and (queries := scope.get("state", {}).get("queries")):
            asked = f" {json.dumps(queries)}"
        line = "%s %s %s %d %d bytes %.1f ms%s"
        access.info(line, who, scope["method"][:10], route, status, size, taken * 1000, asked)
