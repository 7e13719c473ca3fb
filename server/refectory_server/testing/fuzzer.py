"""`Fuzzer`: one app for all examples of a property test, every answer held to the description."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from refectory_server.testing.description import Description
from refectory_server.testing.simulated_app import simulated_app
from refectory_server.testing.simulated_engine import small_facts


class Fuzzer:
    """An app whose steps cost nothing, on a loop of its own: hypothesis' tests are no coroutines.

    Its context is small, so that answers end soon and limits are met.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._context = simulated_app(facts=small_facts(num_blocks=24, max_model_len=96))
        self._api = self._runner.run(self._context.__aenter__())
        document = self._runner.run(self._api.client.get("/openapi.json")).json()
        self.description = Description(document)

    def request(
        self, method: str, path: str, *, url: str | None = None, **sent: Any
    ) -> httpx.Response:
        """Send it and hold the answer to the description of `path`; `url` where it differs."""
        response = self._runner.run(self._api.client.request(method, url or path, **sent))
        assert response.status_code < 500, response.text
        self.description.check(path, response)
        assert self._api.engine.num_in_flight == self._api.lifecycle.num_in_flight == 0
        return response

    def post(self, path: str, content: bytes) -> httpx.Response:
        """A body that is taken is one that the description allows."""
        response = self.request("POST", path, content=content)
        if response.status_code == 200:
            self.description.check_body(path, json.loads(content))
        return response

    def check_idle(self) -> None:
        """Nothing runs or waits, and every block is free."""
        engine = self._api.engine
        while engine.stats.num_running or engine.stats.num_waiting:
            self._runner.run(asyncio.sleep(0.001))  # the last step is being told
        assert engine.stats.num_free_blocks == engine.stats.num_blocks == 24

    def close(self) -> None:
        self.check_idle()
        self._runner.run(self._context.__aexit__(None, None, None))
        self._runner.close()
