"""Opening ports, and uvicorn as this program runs it. Knows no app and no life cycle."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from refectory_server.config import ApiConfig
from refectory_server.errors import StartupError

BACKLOG = 2048


class ListeningServer:
    """A server whose port is open before it serves: `bind` comes first."""

    def __init__(self, host: str, port: int, *, flag: str) -> None:
        """`flag`: the one that the port was given with."""
        self._host, self._port = host, port
        self._flag = flag
        self._socket: socket.socket | None = None

    @property
    def port(self) -> int:
        """The port bound, also where 0 was asked for."""
        return int(self._bound_socket.getsockname()[1])

    def bind(self) -> None:
        """Open the port. Raises `StartupError` in one line that names host, port and flag."""
        host, port, flag = self._host, self._port, self._flag
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StartupError(
                    f"port {port} on {host} is in use by another program; choose another with "
                    f"{flag}",
                    reason="PortInUse",
                ) from error
            raise StartupError(
                f"cannot listen on {host} port {port} (--host, {flag}): {error.strerror or error}",
                reason="CannotListen",
            ) from error

    @property
    def _bound_socket(self) -> socket.socket:
        if self._socket is None:
            raise RuntimeError("bind() comes first")
        return self._socket


def check_tls_files(config: ApiConfig) -> None:
    """Raises `StartupError` in one line that names the files."""
    if config.ssl_certfile is None:
        if config.ssl_keyfile is not None:
            raise StartupError("--ssl-keyfile needs --ssl-certfile", reason="TLSFilesInvalid")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A password would be asked for on the terminal, and nobody sits there.
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password="")
    except OSError as error:  # ssl.SSLError is one
        files = " and ".join(f for f in (config.ssl_certfile, config.ssl_keyfile) if f)
        raise StartupError(
            f"cannot serve TLS with {files} (--ssl-certfile, --ssl-keyfile): "
            f"{error.strerror or error}",
            reason="TLSFilesInvalid",
        ) from error


class UvicornServer(uvicorn.Server):
    """uvicorn without its signal handling, over when `run_until_over` is."""

    def __init__(
        self,
        app: ASGIApp,
        run_until_over: Callable[[], Awaitable[None]],
        config: ApiConfig,
        **options: Any,
    ) -> None:
        """`options` are those of `uvicorn.Config`. Raises `StartupError` for unusable TLS files."""
        check_tls_files(config)
        super().__init__(
            uvicorn.Config(
                app,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                log_level="warning",
                server_header=False,
                proxy_headers=False,
                ssl_certfile=config.ssl_certfile,
                ssl_keyfile=config.ssl_keyfile,
                **options,
            )
        )
        self._run_until_over = run_until_over

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self._run_until_over()
