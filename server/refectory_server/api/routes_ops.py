"""Routes for operators, probes and routers: health, readiness, load, metrics, tokens.

`/health` and `/ready` differ on purpose: a server that loads or drains is alive and not ready.
Knows no generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from refectory_server.api.body import decode_json_object, read_body
from refectory_server.api.generation import encode_messages
from refectory_server.api.openapi import BODY_ERRORS, operation, probe
from refectory_server.api.parsing import parse
from refectory_server.api.protocol import DetokenizeRequest, TokenizeRequest
from refectory_server.api.responses import (
    DetokenizeResponse,
    LoadResponse,
    ReadyResponse,
    TokenizeResponse,
    VersionResponse,
    json_response,
)
from refectory_server.api.service import Service
from refectory_server.engine.client import EngineState
from refectory_server.engine.input_processor import InputProcessor
from refectory_server.metrics import num_waiting
from refectory_server.version import __version__

TokensRequest = TypeVar("TokensRequest", TokenizeRequest, DetokenizeRequest)


class OpsRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    def router(self) -> APIRouter:
        router = self.monitoring_router()
        add = router.add_api_route
        add("/load", self.load, methods=["GET"], **operation(LoadResponse))
        add("/version", self.version, methods=["GET"], **operation(VersionResponse))
        add(
            "/tokenize",
            self.tokenize,
            methods=["POST"],
            **operation(TokenizeResponse, body=TokenizeRequest, errors=BODY_ERRORS),
        )
        add(
            "/detokenize",
            self.detokenize,
            methods=["POST"],
            **operation(DetokenizeResponse, body=DetokenizeRequest, errors=BODY_ERRORS),
        )
        return router

    def monitoring_router(self) -> APIRouter:
        """What probes and scrapers read."""
        router = APIRouter()
        add = router.add_api_route
        add("/health", self.health, methods=["GET", "HEAD"], **probe())
        add("/ready", self.ready, methods=["GET", "HEAD"], **probe(ReadyResponse))
        add("/metrics", self.metrics, methods=["GET"], **operation(is_text=True))
        return router

    async def health(self) -> Response:
        """Alive; says nothing of readiness. Answered off the engine."""
        engine = self._service.engine
        timeout_s = self._service.config.api.watchdog_timeout
        is_dead = engine.status.state is EngineState.DEAD
        is_stuck = engine.seconds_without_progress() > timeout_s
        return Response(status_code=503 if is_dead or is_stuck else 200)

    async def ready(self) -> Response:
        status = self._service.engine.status
        if status.state is EngineState.DEAD:
            body = ReadyResponse(phase="dead", message=status.message or status.reason)
        elif self._service.lifecycle.is_draining:
            body = ReadyResponse(phase="draining")
        elif status.state is EngineState.LOADING:
            body = ReadyResponse(phase=status.phase, progress=status.progress)
        else:
            return self._ready_response(ReadyResponse(phase="ready"), 200)
        return self._ready_response(body, 503)

    async def load(self) -> Response:
        engine = self._service.engine
        return json_response(
            LoadResponse(
                in_flight=self._service.lifecycle.num_in_flight,
                waiting=num_waiting(engine),
                running=engine.stats.num_running,
                kv_cache_usage=engine.stats.kv_cache_usage,
                draining=self._service.lifecycle.is_draining,
                max_num_seqs=self._service.config.scheduler.max_num_seqs,
            )
        )

    async def version(self) -> Response:
        return json_response(VersionResponse(version=__version__))

    async def metrics(self) -> Response:
        metrics = self._service.metrics
        metrics.refresh(self._service.engine, is_draining=self._service.lifecycle.is_draining)
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def tokenize(self, request: Request) -> Response:
        return await self._answer_in_thread(request, TokenizeRequest, self._tokenize)

    async def detokenize(self, request: Request) -> Response:
        return await self._answer_in_thread(request, DetokenizeRequest, self._detokenize)

    async def _answer_in_thread(
        self,
        request: Request,
        request_class: type[TokensRequest],
        answer: Callable[[TokensRequest, InputProcessor], BaseModel],
    ) -> Response:
        """Decode, check and answer off the event loop: large bodies take long."""
        body = await read_body(request)
        processor = self._service.input_processor()
        max_model_len = self._service.engine.facts.max_model_len

        def work() -> BaseModel:
            wire = parse(request_class, decode_json_object(body), max_model_len=max_model_len)
            self._service.model_name(wire.model)
            return answer(wire, processor)

        return json_response(await asyncio.to_thread(work))

    def _tokenize(self, wire: TokenizeRequest, processor: InputProcessor) -> TokenizeResponse:
        if wire.prompt is None:
            tokens = encode_messages(wire.messages or [], wire, processor)
        else:
            adds = wire.add_special_tokens is not False
            tokens = processor.encode_prompt(wire.prompt, add_special_tokens=adds)
        max_model_len = self._service.engine.facts.max_model_len
        return TokenizeResponse(tokens=tokens, count=len(tokens), max_model_len=max_model_len)

    def _detokenize(self, wire: DetokenizeRequest, processor: InputProcessor) -> DetokenizeResponse:
        return DetokenizeResponse(prompt=processor.detokenize(wire.tokens))

    def _ready_response(self, body: ReadyResponse, status_code: int) -> Response:
        return json_response(body.model_dump_json(exclude_none=True), status_code)
