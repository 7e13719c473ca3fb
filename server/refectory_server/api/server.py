"""`HttpServer`: the port, the signals, and the orderly end of the HTTP side.

Owns the listening socket and uvicorn's event loop task; moves the `Lifecycle`. Does not know
routes or the engine.

How it ends, and its exit code:
- SIGTERM, or `drain()`: /ready turns 503, the listener stays open, what arrives is served with
  `Connection: close` until shortly before the end of --shutdown-timeout; over when nothing has
  been in flight for a second: 0. What is unfinished at the deadline gets an error: 0 as well, the
  drain took its time as told.
- A second SIGTERM: stop at once, in-flight requests get an error: 143 (128 + signal number).
- SIGINT, at any time: the same, 130.
- `stop(exit_code)`: the same, with the caller's code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Iterator

from starlette.types import ASGIApp

from refectory_server.api.connection_age import ConnectionAgeMiddleware
from refectory_server.api.http_protocol import HttpProtocol
from refectory_server.api.lifecycle import QUIET_S, Lifecycle, Phase
from refectory_server.api.listener import ListeningServer, UvicornServer
from refectory_server.config import ApiConfig

logger = logging.getLogger(__name__)

SERVING_TICK_S = 1.0
"""uvicorn's own bookkeeping (the Date header) needs no more while serving."""
DRAINING_TICK_S = 0.1
FLUSH_S = 2.0
"""For last bytes on their way to slow readers, once everything else is over."""
KEEP_ALIVE_S = 75.0
"""Longer than the 60 s of common load balancers, so that those close idle connections first."""


class HttpServer(ListeningServer):
    """One app on one port.

    `bind`, then `serve` in the event loop that the app's engine lives in (made by uvloop for
    speed); `drain` and `stop` from that loop at any time.
    """

    def __init__(self, app: ASGIApp, config: ApiConfig, lifecycle: Lifecycle) -> None:
        super().__init__(config.host, config.port, flag="--port")
        self._config = config
        self._lifecycle = lifecycle
        self._exit_code = 0
        self._wake_up = asyncio.Event()
        if config.max_connection_age:
            app = ConnectionAgeMiddleware(app, config.max_connection_age)
        self._server = UvicornServer(
            app,
            self._run_until_over,
            config,
            http=HttpProtocol,
            timeout_keep_alive=int(KEEP_ALIVE_S),
            timeout_graceful_shutdown=int(FLUSH_S),
        )

    async def serve(self, *, handle_signals: bool = True) -> int:
        """Serve until drained or stopped; returns the process's exit code.

        Call `bind` first. With `handle_signals`, SIGTERM and SIGINT are taken over meanwhile
        (main thread only).
        """
        sockets = [self._bound_socket]
        with self._signals() if handle_signals else contextlib.nullcontext():
            await self._server.serve(sockets)
        return self._exit_code

    def handle_signal(self, number: signal.Signals) -> None:
        if number is signal.SIGTERM and self._lifecycle.phase is Phase.SERVING:
            logger.info(
                "SIGTERM: draining %d requests, up to %g s",
                self._lifecycle.num_in_flight,
                self._config.shutdown_timeout,
            )
            self.drain()
        else:
            logger.warning("%s: stopping at once", number.name)
            self.stop(128 + number)

    def drain(self) -> None:
        """Finish what is in flight, then leave. No effect when already on the way out."""
        self._lifecycle.drain()
        self._wake_up.set()

    def stop(self, exit_code: int) -> None:
        """Fail what is in flight and leave. The first call's code counts."""
        if self._lifecycle.phase is not Phase.STOPPING:
            self._exit_code = exit_code
            self._lifecycle.stop()
            self._wake_up.set()

    async def _run_until_over(self) -> None:
        while self._lifecycle.phase is Phase.SERVING:
            await self._tick(SERVING_TICK_S)
        if self._lifecycle.phase is Phase.DRAINING:
            await self._drain()
        await self._fail_the_rest()

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        # Not at once: a connection that has been quiet this long is idle, while one that was
        # answered a moment ago may have its next request on the way.
        closing = loop.call_later(QUIET_S, self._close_idle_connections)
        while self._lifecycle.phase is Phase.DRAINING:
            if self._lifecycle.is_drained:
                logger.info(
                    "drained after %.1f s: %d requests were finished",
                    self._lifecycle.seconds_draining,
                    self._lifecycle.num_drained,
                )
                break
            if self._lifecycle.is_overdue:
                logger.warning(
                    "--shutdown-timeout is over after %.1f s: %d requests were finished, "
                    "%d are cut off",
                    self._lifecycle.seconds_draining,
                    self._lifecycle.num_drained,
                    self._lifecycle.num_in_flight,
                )
                break
            await self._tick(DRAINING_TICK_S)
        closing.cancel()

    async def _fail_the_rest(self) -> None:
        """Tell the requests still in flight, and give their last bytes a moment."""
        self._lifecycle.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while self._lifecycle.num_in_flight:
                    await asyncio.sleep(0.01)

    async def _tick(self, seconds: float) -> None:
        await self._server.on_tick(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake_up.wait()
        self._wake_up.clear()

    def _close_idle_connections(self) -> None:
        for connection in tuple(self._server.server_state.connections):
            # A connection without a cycle has not sent its first request yet, but may be about to.
            if connection.cycle is not None:  # type: ignore[union-attr]
                connection.shutdown()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signals can be handled in the main thread only")
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_signal, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
