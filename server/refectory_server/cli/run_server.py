"""Puts the server together and runs it: engine process, text side, HTTP side, one event loop.

Owns the order of start and stop, and what the death of the engine means. Knows no flags.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from prometheus_client import CollectorRegistry

from refectory_server.api.app import create_app, create_metrics_app
from refectory_server.api.lifecycle import Lifecycle
from refectory_server.api.metrics_server import MetricsServer
from refectory_server.api.server import HttpServer
from refectory_server.api.service import served_model_names
from refectory_server.cli.affinity import keep_to
from refectory_server.cli.local_model import LocalModel
from refectory_server.cli.startup_bar import startup_bar
from refectory_server.config import ServerConfig
from refectory_server.engine.async_engine import AsyncEngine
from refectory_server.engine.client import EngineState
from refectory_server.engine.input_processor import InputProcessor
from refectory_server.errors import EngineDead, StartupError
from refectory_server.metrics import ServerMetrics
from refectory_server.runner.interface import RunnerFacts
from refectory_server.text_side import TextSide

logger = logging.getLogger(__name__)

EXIT_ENGINE_DIED = 1


async def run_server(config: ServerConfig) -> int:
    """Serve until told to stop; returns the exit code. Raises `StartupError`, `EngineDead`."""
    started = time.monotonic()
    model = LocalModel(config)  # a wrong name is told before anything is started
    model_name = served_model_names(config.model)[0]
    metrics = ServerMetrics(CollectorRegistry(), model_name)
    # A thread beside the engine's own loading; awaited when the engine is ready.
    text_side = asyncio.create_task(model.load_text_side())

    async def make_input_processor(facts: RunnerFacts) -> InputProcessor:
        return (await text_side).make_input_processor(facts)

    engine = AsyncEngine(
        model.engine_client(),
        metrics,
        make_input_processor,
        request_timeout_s=config.api.request_timeout,
        seed=config.model.seed,
    )
    lifecycle = Lifecycle(config.api.shutdown_timeout)
    server = HttpServer(create_app(engine, config, metrics, lifecycle), config.api, lifecycle)
    metrics_server = None
    if config.api.metrics_port is not None:
        app = create_metrics_app(engine, config, metrics, lifecycle)
        metrics_server = MetricsServer(app, config.api, config.api.metrics_port)
    try:
        # The ports open before anything is loaded: /ready tells how far it is.
        server.bind()
        if metrics_server is not None:
            metrics_server.bind()
            metrics_server.start()
        await engine.start()
        supervisor = asyncio.create_task(_supervise(engine, text_side, server, config, started))
        async with startup_bar(engine, config.api):
            exit_code = await server.serve()
        supervisor.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await supervisor  # raises what kept the engine from starting, or killed it
        return exit_code
    finally:
        text_side.cancel()
        await engine.shutdown()
        if metrics_server is not None:
            await metrics_server.stop()


async def _supervise(
    engine: AsyncEngine,
    text_side: asyncio.Task[TextSide],
    server: HttpServer,
    config: ServerConfig,
    started: float,
) -> None:
    """Tell when the engine is ready; end the server when it is dead, or cannot be of use."""
    try:
        await text_side  # sooner done than the weights: its errors need not wait for them
    except Exception:
        server.stop(EXIT_ENGINE_DIED)
        raise
    status = await engine.wait_until_settled()
    if status.state is EngineState.DEAD:
        server.stop(EXIT_ENGINE_DIED)
        raise StartupError(status.message, reason=status.reason)
    keep_to(engine.facts.spare_cpus)
    _log_ready(config, server.port, time.monotonic() - started)
    status = await engine.wait_until_dead()
    server.stop(EXIT_ENGINE_DIED)
    raise EngineDead(f"the engine is dead: {status.message}", reason=status.reason)


def _log_ready(config: ServerConfig, port: int, seconds: float) -> None:
    scheme = "http" if config.api.ssl_certfile is None else "https"
    scheme_and_host = f"{scheme}://localhost:{port}"
    key = " -H 'Authorization: Bearer YOUR_KEY'" if config.api.has_keys else ""
    logger.info(
        "%s is ready after %.1f s on %s",
        ", ".join(served_model_names(config.model)),
        seconds,
        scheme_and_host,
    )
    logger.info(
        "try: curl -s %s/v1/chat/completions%s -H 'Content-Type: application/json' -d "
        '\'{"messages": [{"role": "user", "content": "What is the capital of France?"}]}\'',
        scheme_and_host,
        key,
    )
