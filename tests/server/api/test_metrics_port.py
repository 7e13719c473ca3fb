"""`--metrics-port`: a second port with metrics and probes only, which asks for no key."""

from __future__ import annotations

import signal

import httpx
import pytest

from refectory_server.api.app import create_metrics_app
from refectory_server.api.metrics_server import MetricsServer
from refectory_server.config import ApiConfig
from refectory_server.testing.server_process import free_port, server_process
from refectory_server.testing.simulated_app import simulated_app

SECRET = ApiConfig(host="127.0.0.1", port=0, api_key=("secret",))


@pytest.mark.anyio
async def test_it_answers_what_is_watched_and_nothing_else() -> None:
    async with simulated_app(api=SECRET) as api:
        app = create_metrics_app(api.engine, api.config, api.metrics, api.lifecycle)
        server = MetricsServer(app, ApiConfig(host="127.0.0.1"), 0)
        server.bind()
        server.start()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
            for path in ("/health", "/ready", "/metrics"):
                assert (await client.get(path)).status_code == 200
            assert "vllm:num_requests_running" in (await client.get("/metrics")).text
            for path in ("/v1/models", "/v1/completions", "/load", "/version", "/tokenize"):
                answer = await client.get(path)
                assert answer.status_code == 404
                assert answer.json()["error"]["type"] == "invalid_request_error"
            api.lifecycle.drain()
            assert (await client.get("/ready")).json() == {"phase": "draining"}
            samples = (await client.get("/metrics")).text
            assert 'refectory_draining{engine="0",model_name="sim"} 1.0' in samples
        await server.stop()
        await server.stop()


def test_the_whole_server_with_two_ports() -> None:
    port = free_port()
    with server_process("--simulate=instant", f"--metrics-port={port}", "--api-key=k") as server:
        server.wait_until_ready()
        watched = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{watched}/ready").json() == {"phase": "ready"}
        assert httpx.get(f"{server.url}/metrics").status_code == 200
        for url in (server.url, watched):
            assert "refectory_max_num_seqs" in httpx.get(f"{url}/metrics").text
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0


def test_a_metrics_port_in_use_names_its_flag() -> None:
    port = free_port()
    with server_process("--simulate=instant", f"--metrics-port={port}", port=port) as server:
        assert server.wait(20) == 1
        assert server.output.splitlines()[-1] == (
            f"refectory: port {port} on 127.0.0.1 is in use by another program; "
            "choose another with --metrics-port"
        )
