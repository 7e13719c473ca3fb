"""`LocalModel`: the model that is served, as files of this machine, now or after a download.

Knows which of the two it is, and makes engine and text side wait for it. Knows no HTTP.
"""

from __future__ import annotations

import asyncio

from refectory_server.cli.model_download import download_model
from refectory_server.config import ServerConfig
from refectory_server.engine.client import EngineClient
from refectory_server.engine.prepared_client import PreparedEngineClient
from refectory_server.engine.process_client import ProcessEngineClient
from refectory_server.errors import StartupError
from refectory_server.models.hub_id import HubId
from refectory_server.models.model_check import check_model
from refectory_server.models.source import hub_id_of, resolve_model
from refectory_server.runner.interface import ReportProgress
from refectory_server.text_side import TextSide


class LocalModel:
    """Made in the event loop. Raises `StartupError` for a model that is nowhere."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._hub_id: HubId | None = None
        self._local_config = asyncio.get_running_loop().create_future()
        if config.simulator.simulate is None:
            self._hub_id = hub_id_of(config.model.model, config.model.revision)
            if self._hub_id is None:
                resolve_model(config.model.model)
        if self._hub_id is None:
            self._local_config.set_result(config)

    def engine_client(self) -> EngineClient:
        """Not started. Of a model from a hub it downloads first."""
        if self._hub_id is None:
            return ProcessEngineClient(self._config)
        hub_id = self._hub_id

        async def prepare(report: ReportProgress) -> EngineClient:
            try:
                local_config = await download_model(self._config, hub_id, report)
            except StartupError as error:
                self._local_config.set_exception(error)
                raise
            self._local_config.set_result(local_config)
            return ProcessEngineClient(local_config)

        return PreparedEngineClient(prepare)

    async def load_text_side(self) -> TextSide:
        """As soon as its files are here. Raises `StartupError` for whatever is wrong with them."""
        return await asyncio.to_thread(_load_text_side, await self._local_config)


def _load_text_side(config: ServerConfig) -> TextSide:
    if config.simulator.simulate is None:
        # Here it takes a moment; the engine would tell the same after it has imported torch.
        check_model(resolve_model(config.model.model))
    return TextSide.load(config)
