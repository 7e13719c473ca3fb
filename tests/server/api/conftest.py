"""Fixtures of the API's tests: the app over a simulated engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from refectory_server.testing.simulated_app import SimulatedApp, simulated_app


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def api() -> AsyncIterator[SimulatedApp]:
    async with simulated_app() as simulated:
        yield simulated


@pytest.fixture
def client(api: SimulatedApp) -> httpx.AsyncClient:
    return api.client
