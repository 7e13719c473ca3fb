"""Fixtures of the commands' tests: a small hub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refectory_server.testing.hub_server import HubServer, hub_server


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as hub:
        yield hub
