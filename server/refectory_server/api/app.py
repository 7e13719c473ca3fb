"""`create_app` and `create_metrics_app`: routes and middlewares around one engine.

There is no module-level app: a process may hold several.
"""

from __future__ import annotations

import time

from fastapi import FastAPI

from refectory_server.api.auth import AuthMiddleware, load_api_keys
from refectory_server.api.error_handlers import UnexpectedErrorMiddleware, add_error_handlers
from refectory_server.api.in_flight import InFlightMiddleware
from refectory_server.api.lifecycle import Lifecycle
from refectory_server.api.openapi import add_openapi_route
from refectory_server.api.request_id import RequestIdMiddleware
from refectory_server.api.routes_openai import OpenAIRoutes
from refectory_server.api.routes_ops import OpsRoutes
from refectory_server.api.service import Service, served_model_names
from refectory_server.api.sse import StreamTimes
from refectory_server.config import ServerConfig
from refectory_server.engine.async_engine import AsyncEngine
from refectory_server.metrics import ServerMetrics
from refectory_server.version import __version__


def create_app(
    engine: AsyncEngine,
    config: ServerConfig,
    metrics: ServerMetrics,
    lifecycle: Lifecycle,
    *,
    times: StreamTimes | None = None,
) -> FastAPI:
    """The app; it answers at once, also while the engine is still loading.

    `times` are for tests. Raises `StartupError` for an unusable `--api-key-file`.
    """
    service = _make_service(engine, config, metrics, lifecycle, times or StreamTimes())
    metrics.configure(config)
    keys = load_api_keys(config.api)
    app = _make_app()
    app.include_router(OpenAIRoutes(service).router())
    app.include_router(OpsRoutes(service).router())
    add_openapi_route(app, needs_key=bool(keys))
    add_error_handlers(app)
    # The last one added is the outermost: ids go onto refusals too, and refusals are not counted.
    app.add_middleware(UnexpectedErrorMiddleware)
    if keys:
        app.add_middleware(AuthMiddleware, keys=keys)
    app.add_middleware(InFlightMiddleware, lifecycle=lifecycle, on_rejected=metrics.on_rejected)
    app.add_middleware(RequestIdMiddleware)
    return app


def create_metrics_app(
    engine: AsyncEngine, config: ServerConfig, metrics: ServerMetrics, lifecycle: Lifecycle
) -> FastAPI:
    """What `--metrics-port` serves: probes and metrics, never a key, never counted."""
    service = _make_service(engine, config, metrics, lifecycle, StreamTimes())
    app = _make_app()
    app.include_router(OpsRoutes(service).monitoring_router())
    add_error_handlers(app)
    app.add_middleware(UnexpectedErrorMiddleware)
    app.add_middleware(RequestIdMiddleware)
    return app


def _make_app() -> FastAPI:
    return FastAPI(
        title="Refectory",
        version=__version__,
        openapi_url=None,  # ours says more, and pages for it would load scripts from elsewhere
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
    )


def _make_service(
    engine: AsyncEngine,
    config: ServerConfig,
    metrics: ServerMetrics,
    lifecycle: Lifecycle,
    times: StreamTimes,
) -> Service:
    return Service(
        engine=engine,
        config=config,
        metrics=metrics,
        lifecycle=lifecycle,
        model_names=served_model_names(config.model),
        created=int(time.time()),
        times=times,
    )
