"""Refectory's model server. Importing it is cheap: no torch, no web framework.

`LLM` and `SamplingParams` are the Python API; the rest of the package is for its own programs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refectory_server.llm import LLM
    from refectory_server.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    # Only when asked for: the API process and the operator's tests import this package too.
    if name == "LLM":
        from refectory_server.llm import LLM

        return LLM
    if name == "SamplingParams":
        from refectory_server.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
