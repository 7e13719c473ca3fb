"""OpenAI's routes: chat, completions, models. Parse, ask the engine, answer.

Owns the order of the checks and the choice between a stream and a whole answer. Does not know
status codes (`error_handlers`), shapes (`answers`) or how a stream is kept alive (`sse`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from refectory_server.api.answers import (
    Answer,
    AnswerHead,
    ChatAnswer,
    CompletionAnswer,
    frames,
)
from refectory_server.api.body import decode_json_object, read_body
from refectory_server.api.choices import Tally, collect
from refectory_server.api.error_handlers import error_event
from refectory_server.api.generation import Prompts, echoed_texts, prepare
from refectory_server.api.openapi import GENERATION_ERRORS, operation
from refectory_server.api.parsing import parse_generation
from refectory_server.api.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
)
from refectory_server.api.racing import race, raise_when_disconnected, raise_when_stopped
from refectory_server.api.request_id import engine_request_id
from refectory_server.api.responses import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    ModelCard,
    ModelList,
    json_response,
)
from refectory_server.api.service import Service
from refectory_server.api.sse import EventStream
from refectory_server.engine.input_processor import InputProcessor


class OpenAIRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    def router(self) -> APIRouter:
        router = APIRouter()
        add = router.add_api_route
        add(
            "/v1/chat/completions",
            self.chat_completions,
            methods=["POST"],
            **operation(
                ChatCompletion,
                body=ChatCompletionRequest,
                chunk=ChatCompletionChunk,
                errors=GENERATION_ERRORS,
            ),
        )
        add(
            "/v1/completions",
            self.completions,
            methods=["POST"],
            **operation(
                Completion, body=CompletionRequest, chunk=Completion, errors=GENERATION_ERRORS
            ),
        )
        add("/v1/models", self.models, methods=["GET"], **operation(ModelList))
        card = operation(ModelCard, errors=(404,))
        add("/v1/models/{name:path}", self.model, methods=["GET"], **card)
        return router

    async def chat_completions(self, request: Request) -> Response:
        return await self._generate(request, ChatCompletionRequest, ChatAnswer, "chatcmpl")

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, CompletionRequest, CompletionAnswer, "cmpl")

    async def models(self) -> Response:
        return json_response(ModelList(data=[self._card(n) for n in self._service.model_names]))

    async def model(self, name: str) -> Response:
        return json_response(self._card(self._service.model_name(name)))

    async def _generate(
        self,
        request: Request,
        request_class: type[GenerationRequest],
        make_answer: Callable[[AnswerHead], Answer],
        id_prefix: str,
    ) -> Response:
        service = self._service

        async def begin() -> tuple[InputProcessor, GenerationRequest, Prompts, list[str]]:
            body = await read_body(request)
            processor = service.input_processor()
            # In a thread: large bodies take long, and everyone's tokens pass through this loop.
            prepared = await asyncio.to_thread(self._prepare, request_class, body, processor)
            return processor, *prepared

        request_id = engine_request_id(request, id_prefix)
        processor, wire, prompts, echoes = await race(
            begin(), raise_when_stopped(service.lifecycle)
        )
        answer = make_answer(
            AnswerHead(
                id=request_id,
                created=int(time.time()),
                model=service.model_name(wire.model),
                includes_usage=wire.includes_usage,
                has_logprobs=wire.num_logprobs is not None,
                tokenizer=processor.tokenizer,
                echoes=echoes,
            )
        )
        # Not yet begun: reading its first deltas hands the request over.
        batches = service.engine.generate_all(
            prompts,
            request_id=request_id,
            priority=wire.priority or 0,
            cache_salt=wire.cache_salt,
        )
        tally = Tally(len(prompts), prompts[0][1].n)
        if wire.stream:
            return EventStream(
                frames(answer, batches, tally),
                service.lifecycle,
                error_event=partial(error_event, request_id=request.state.request_id),
                times=service.times,
            )
        whole = await race(
            collect(batches, tally),
            raise_when_disconnected(request.receive),
            raise_when_stopped(service.lifecycle),
        )
        return json_response(answer.whole(whole))

    def _prepare(
        self, request_class: type[GenerationRequest], body: bytes, processor: InputProcessor
    ) -> tuple[GenerationRequest, Prompts, list[str]]:
        max_model_len = self._service.engine.facts.max_model_len
        fields = decode_json_object(body)
        wire = parse_generation(request_class, fields, max_model_len=max_model_len)
        self._service.model_name(wire.model)
        scheduler = self._service.config.scheduler
        prompts = prepare(wire, processor, scheduler, max_model_len=max_model_len)
        return wire, prompts, echoed_texts(wire, processor, prompts[0][1].n)

    def _card(self, name: str) -> ModelCard:
        return ModelCard(
            id=name,
            created=self._service.created,
            root=self._service.model_names[0],
            max_model_len=self._service.max_model_len,
        )
