"""Refectory's model server. Importing it is cheap: no torch, no web framework.

`LLM` and `SamplingParams` are the Python API; the rest of the package is for its own programs.
"""

from typing import TYPE_CHECKING, Any

from refectory_server.version import __version__

if TYPE_CHECKING:
    from refectory_server.llm import LLM
    from refectory_server.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    # Only when asked for: the API process and the operator's tests import this package too.
    if name == "LLM":
        from refectory_server.llm import LLM

        return LLM
    if name == "SamplingParams":
        from refectory_server.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
