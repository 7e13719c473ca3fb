"""`DownloadMetrics`: how far a download is, on a port of its own. Knows no hub."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from refectory_server.errors import StartupError


class DownloadMetrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._bytes = Gauge(
            "refectory_download_bytes", "Bytes of the model that are here.", registry=self._registry
        )
        self._total_bytes = Gauge(
            "refectory_download_total_bytes",
            "Bytes of the model in all; 0 until they are known.",
            registry=self._registry,
        )
        self._done = Gauge(
            "refectory_download_done",
            "1 when the model is complete, else 0.",
            registry=self._registry,
        )

    def serve(self, host: str, port: int) -> None:
        """/metrics, from a thread that ends with the program. Raises `StartupError`."""
        try:
            start_http_server(port, host, self._registry)
        except OSError as error:
            raise StartupError(
                f"cannot listen on {host} port {port} (--host, --metrics-port): "
                f"{error.strerror or error}",
                reason="CannotListen",
            ) from error

    def set_bytes(self, num_bytes: int, total_bytes: int) -> None:
        self._total_bytes.set(total_bytes)
        self._bytes.set(num_bytes)

    def set_done(self, num_bytes: int) -> None:
        self.set_bytes(num_bytes, num_bytes)
        self._done.set(1)
