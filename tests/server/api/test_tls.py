"""TLS: HTTPS on every port with the files given, or one clear line."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from refectory_server.api.lifecycle import Lifecycle
from refectory_server.api.server import HttpServer
from refectory_server.config import ApiConfig
from refectory_server.errors import StartupError
from refectory_server.testing.server_process import server_process

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "tls.crt", folder / "tls.key"
    command = [
        *[
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ],
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        *("-keyout", str(key), "-out", str(certificate)),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def test_every_port_speaks_https(files: tuple[Path, Path]) -> None:
    certificate, key = files
    context = ssl.create_default_context(cafile=str(certificate))
    args = [f"--ssl-certfile={certificate}", f"--ssl-keyfile={key}", "--simulate=instant"]
    with server_process(*args) as server, httpx.Client(verify=context) as client:
        url = server.url.replace("http://", "https://")

        def is_ready() -> bool:
            try:
                return client.get(f"{url}/ready").status_code == 200
            except httpx.TransportError:
                return False

        async def wait() -> None:
            while server.is_running and not is_ready():
                await asyncio.sleep(0.05)

        asyncio.run(asyncio.wait_for(wait(), 60))
        body = {"prompt": "hello", "max_tokens": 3, "ignore_eos": True}
        answer = client.post(f"{url}/v1/completions", json=body)
        assert answer.json()["usage"]["completion_tokens"] == 3
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/health")
        assert f"https://localhost:{server.port}" in server.output


async def no_app(*_: object) -> None: ...


@pytest.mark.parametrize("broken", ["missing", "no certificate", "the wrong way round", "no key"])
async def test_unusable_files_are_told(
    files: tuple[Path, Path], tmp_path: Path, broken: str
) -> None:
    certificate, key = files
    text = tmp_path / "text.pem"
    text.write_text("nothing of the kind\n")
    pair = {
        "missing": (str(tmp_path / "nowhere.pem"), str(key)),
        "no certificate": (str(text), str(key)),
        "the wrong way round": (str(key), str(certificate)),
        "no key": (str(certificate), None),
    }[broken]
    config = ApiConfig(ssl_certfile=pair[0], ssl_keyfile=pair[1])
    with pytest.raises(StartupError) as error:
        HttpServer(no_app, config, Lifecycle(60))
    assert error.value.reason == "TLSFilesInvalid"
    assert pair[0] in str(error.value)
    assert "--ssl-certfile" in str(error.value)


async def test_a_key_alone_is_told() -> None:
    with pytest.raises(StartupError, match="--ssl-keyfile needs --ssl-certfile"):
        HttpServer(no_app, ApiConfig(ssl_keyfile="key.pem"), Lifecycle(60))
