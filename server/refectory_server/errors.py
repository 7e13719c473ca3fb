"""The server's exception tree.

Raised anywhere below the API; knows nothing about HTTP. `api/error_handlers.py` is the only
place that turns these into status codes, `cli/main.py` the only one that turns a
`StartupError` or an `EngineDead` into an exit code.
"""


class ServerError(Exception):
    """Base of everything this package raises on purpose."""


class InvalidRequest(ServerError):
    """The caller's input is wrong. `field` is the name as the caller spelled it."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PromptTooLong(InvalidRequest):
    """The prompt cannot fit the context or the KV cache, even alone."""


class ModelNotFound(InvalidRequest):
    """The request names a model that this server does not serve."""


class QueueFull(ServerError):
    """Admission refused. `reason` is the metric label, `retry_after_s` a hint in seconds."""

    def __init__(self, message: str, *, reason: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class DeadlineExceeded(ServerError):
    """The request waited longer than its deadline and never started."""


class RequestFailed(ServerError):
    """This one request failed inside the engine; everyone else goes on."""


class EngineDead(ServerError):
    """The engine process is gone; nothing more can be served. `reason` is a CamelCase word."""

    def __init__(self, message: str, *, reason: str = "EngineDied") -> None:
        super().__init__(message)
        self.reason = reason


class StartupError(ServerError):
    """The server cannot start. `reason` is a CamelCase word for machines, the text for people."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
