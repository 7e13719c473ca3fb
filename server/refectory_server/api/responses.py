"""Wire models of the answers, in OpenAI's and vLLM's shapes. Knows no requests and no engine.

Chunks are written with `exclude_unset`: what is set goes out, null included.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response


class WholeModel(BaseModel):
    """Goes out with every field, whether set or not."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class ErrorDetail(WholeModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    error: ErrorDetail


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    """Counts of token ids, not of characters or chunks."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    num_preemptions: int
    """How often a choice lost its KV blocks and was computed again: only time was lost."""


FinishWord = Literal["stop", "length"]


class TopLogprob(BaseModel):
    token: str
    """Bytes that are no text by themselves are U+FFFD here."""
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChatTokenLogprob]
    refusal: None


class CompletionLogprobs(BaseModel):
    """Lists with an item for each token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]
    """Characters of the choice's text before the token."""


class AssistantMessage(WholeModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishWord


class ChatCompletion(WholeModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishWord | None


class ChatCompletionChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishWord | None


class Completion(BaseModel):
    """The whole answer and, with one choice's piece of text, a chunk of it."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ModelCard(WholeModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "refectory"
    root: str
    max_model_len: int | None
    """Null until the model is loaded."""


class ModelList(WholeModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeResponse(WholeModel):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: None = None


class DetokenizeResponse(BaseModel):
    prompt: str


class VersionResponse(BaseModel):
    version: str


class LoadResponse(BaseModel):
    """`GET /load`: what a router wants to know, cheap to ask for."""

    in_flight: int
    """HTTP requests between first byte and last byte."""
    waiting: int
    running: int
    kv_cache_usage: float
    """Share of the KV blocks that requests hold, 0 to 1."""
    draining: bool
    max_num_seqs: int


class ReadyResponse(BaseModel):
    phase: str
    progress: float | None = None
    """Of the phase, 0 to 1; only while loading."""
    message: str | None = None
    """Why the engine is dead."""


def json_response(body: BaseModel | str, status_code: int = 200) -> Response:
    content = body if isinstance(body, str) else body.model_dump_json()
    return Response(content, status_code=status_code, media_type="application/json")
