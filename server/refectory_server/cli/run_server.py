"""Puts the server together and runs it: engine process, text side, HTTP side, one event loop.

Owns the order of start and stop, and what the death of the engine means. Knows no flags.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from refectory_server.api.app import create_app
from refectory_server.api.lifecycle import Lifecycle
from refectory_server.api.server import HttpServer
from refectory_server.api.service import served_model_names
from refectory_server.config import ServerConfig
from refectory_server.engine.async_engine import AsyncEngine
from refectory_server.engine.client import EngineState
from refectory_server.engine.input_processor import InputProcessor, usable_tokens
from refectory_server.engine.process_client import ProcessEngineClient
from refectory_server.engine.sampling_defaults import SamplingDefaults, load_sampling_defaults
from refectory_server.errors import StartupError
from refectory_server.metrics import ServerMetrics
from refectory_server.models.source import resolve_model
from refectory_server.runner.interface import RunnerFacts
from refectory_server.runner.simulation import (
    load_simulated_chat_template,
    load_simulated_tokenizer,
)
from refectory_server.simulation_profile import load_profile
from refectory_server.tokenizer.chat_template import ChatTemplate
from refectory_server.tokenizer.load import load_chat_template, load_tokenizer
from refectory_server.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

EXIT_ENGINE_DIED = 1


@dataclass(frozen=True, slots=True)
class TextSide:
    """What the API side loads of a model: everything but weights."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    default_sampling: SamplingDefaults

    @classmethod
    def load(cls, config: ServerConfig) -> TextSide:
        """Raises `StartupError` for missing or damaged files."""
        model = config.model
        if config.simulator.simulate is not None:
            profile = load_profile(config.simulator.simulate)
            tokenizer = load_simulated_tokenizer(profile)
            template = load_simulated_chat_template(profile, model.chat_template, tokenizer)
            return cls(tokenizer, template, SamplingDefaults())
        files = resolve_model(model.model)
        tokenizer = load_tokenizer(files)
        template = load_chat_template(files, model.chat_template, tokenizer.special_tokens)
        defaults = load_sampling_defaults(files, model.generation_config)
        return cls(tokenizer, template, defaults)


async def run_server(config: ServerConfig) -> int:
    """Serve until told to stop; returns the exit code. Raises `StartupError`."""
    started = time.monotonic()
    if config.simulator.simulate is None:
        resolve_model(config.model.model)  # a wrong name is told before anything is started
    model_name = served_model_names(config.model)[0]
    metrics = ServerMetrics(CollectorRegistry(), model_name)
    # A thread beside the engine's own loading; awaited when the engine is ready.
    text_side = asyncio.create_task(asyncio.to_thread(TextSide.load, config))

    async def make_input_processor(facts: RunnerFacts) -> InputProcessor:
        text = await text_side
        return InputProcessor(
            text.tokenizer,
            text.chat_template,
            facts,
            usable_tokens=usable_tokens(facts, config.scheduler.watermark),
            default_sampling=text.default_sampling,
        )

    engine = AsyncEngine(
        ProcessEngineClient(config),
        metrics,
        make_input_processor,
        request_timeout_s=config.api.request_timeout,
    )
    lifecycle = Lifecycle(config.api.shutdown_timeout)
    server = HttpServer(create_app(engine, config, metrics, lifecycle), config.api, lifecycle)
    try:
        # The port opens before anything is loaded: /ready tells how far it is.
        server.bind()
        await engine.start()
        supervisor = asyncio.create_task(_supervise(engine, server, config, started))
        exit_code = await server.serve()
        supervisor.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await supervisor  # raises what kept the engine from starting
        return exit_code
    finally:
        text_side.cancel()
        await engine.shutdown()


async def _supervise(
    engine: AsyncEngine, server: HttpServer, config: ServerConfig, started: float
) -> None:
    """Tell when the engine is ready; end the server when it is dead."""
    status = await engine.wait_until_settled()
    if status.state is EngineState.DEAD:
        server.stop(EXIT_ENGINE_DIED)
        raise StartupError(status.message, reason=status.reason)
    _log_ready(config, server.port, time.monotonic() - started)
    status = await engine.wait_until_dead()
    logger.error("the engine is dead (%s): %s", status.reason, status.message)
    server.stop(EXIT_ENGINE_DIED)


def _log_ready(config: ServerConfig, port: int, seconds: float) -> None:
    scheme_and_host = f"http://localhost:{port}"
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
