"""`Service`: what every route needs, in one place, and the checks that come before all others.

Knows the engine's state and the served names; no wire formats.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import PurePath

from refectory_server.api.lifecycle import Lifecycle, Unavailable
from refectory_server.api.sse import StreamTimes
from refectory_server.config import ModelConfig, ServerConfig
from refectory_server.engine.async_engine import AsyncEngine
from refectory_server.engine.client import EngineState
from refectory_server.engine.input_processor import InputProcessor
from refectory_server.errors import EngineDead, ModelNotFound
from refectory_server.metrics import ServerMetrics


def served_model_names(config: ModelConfig) -> tuple[str, ...]:
    """Names in the API, the first of which labels the metrics; never a path on this machine."""
    if config.served_model_name:
        return config.served_model_name
    model = config.model
    if "://" in model:
        # Of a hub's model the name, not the revision.
        return (model.partition("://")[2].partition("@")[0],)
    is_path = model.startswith(("/", ".", "~")) or os.path.exists(model)
    return (PurePath(model).name or model,) if is_path else (model,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    engine: AsyncEngine
    config: ServerConfig
    metrics: ServerMetrics
    lifecycle: Lifecycle
    model_names: tuple[str, ...]
    created: int
    """Unix time in seconds at which the server was made."""
    times: StreamTimes = field(default_factory=StreamTimes)

    def model_name(self, asked_for: str | None) -> str:
        """The name an answer carries. Raises `ModelNotFound`."""
        if asked_for is None:
            return self.model_names[0]
        # vLLM's clients ask for what stands on the command line.
        if asked_for in self.model_names or asked_for == self.config.model.model:
            return asked_for
        raise ModelNotFound(
            f"the model {asked_for[:200]!r} is not served here; "
            f"served: {', '.join(self.model_names)}",
            field="model",
        )

    def input_processor(self) -> InputProcessor:
        """Raises `Unavailable` while the model loads, `EngineDead` after the engine's end."""
        status = self.engine.status
        if status.state is EngineState.LOADING:
            raise Unavailable(
                f"the model is loading: {status.phase}, {status.progress:.0%}", code="loading"
            )
        if status.state is EngineState.DEAD:
            raise EngineDead(f"the engine is dead: {status.message or status.reason}")
        return self.engine.input_processor

    @property
    def max_model_len(self) -> int | None:
        """None until the model is loaded."""
        if self.engine.status.state is EngineState.READY:
            return self.engine.facts.max_model_len
        return None
