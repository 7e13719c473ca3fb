"""docs/differences-from-vllm.md: the defaults that it tells are those of requests and models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from refectory_server.api.app import create_app
from refectory_server.api.lifecycle import Lifecycle
from refectory_server.config import ServerConfig
from refectory_server.core.request import FinishReason
from refectory_server.core.stats import RequestTimings
from refectory_server.engine.sampling_defaults import load_sampling_defaults
from refectory_server.metrics import ServerMetrics
from refectory_server.models.source import ModelFiles
from refectory_server.sampling_params import SamplingParams
from refectory_server.testing.markdown_table import quoted, table_rows
from refectory_server.testing.simulated_app import client_of
from refectory_server.testing.simulated_engine import simulated_engine

pytestmark = pytest.mark.anyio

PAGE = (Path(__file__).parents[2] / "docs" / "differences-from-vllm.md").read_text()
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    "completion": ("/v1/completions", {"prompt": "hi"}),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class RecordingMetrics(ServerMetrics):
    """Keeps the parameters that the engine was given."""

    def __init__(self) -> None:
        super().__init__(CollectorRegistry(), "sim")
        self.params: list[SamplingParams] = []

    def on_finished(
        self,
        request_id: str,
        params: SamplingParams,
        finish_reason: FinishReason,
        timings: RequestTimings,
    ) -> None:
        self.params.append(params)


async def params_of(kind: str) -> SamplingParams:
    """What a request that says nothing asks of the engine."""
    path, body = REQUESTS[kind]
    metrics = RecordingMetrics()
    async with simulated_engine(observer=metrics) as behind:
        app = create_app(behind.engine, ServerConfig(), metrics, Lifecycle(60))
        async with client_of(app) as client:
            assert (await client.post(path, json=body)).status_code == 200
    [params] = metrics.params
    return params


async def test_the_defaults_are_as_told() -> None:
    held = {"class": SamplingParams()} | {kind: await params_of(kind) for kind in REQUESTS}
    told: set[str] = set()
    for what, here, _ in table_rows(PAGE, "Defaults"):
        [field, *owner] = quoted(what)
        kind = "class" if owner else what.rpartition(" ")[2]
        default = json.loads(quoted(here)[0]) if here.startswith("`") else None
        for params in [held[kind]] if kind in held else held.values():
            value = getattr(params, field)
            assert (None if value == () else value) == default, what
        told.add(field)
    optional = {"allowed_token_ids", "bad_words_token_ids", "logit_bias"}
    assert told | optional == {field.name for field in dataclasses.fields(SamplingParams)}


def test_the_keys_of_a_generation_config_that_count(tmp_path: Path) -> None:
    rows = table_rows(PAGE, "Defaults", table=1)
    keys = {key: here.startswith("counts") for cell, here, _ in rows for key in quoted(cell)}
    (tmp_path / "generation_config.json").write_text(json.dumps(dict.fromkeys(keys, 1)))
    files = ModelFiles(tmp_path, "test")
    given = load_sampling_defaults(files, "auto").given()
    told = {key.replace("max_new_tokens", "max_tokens") for key, counts in keys.items() if counts}
    assert given.keys() == told
    assert load_sampling_defaults(files, "vllm").given() == {}
