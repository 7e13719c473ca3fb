"""vLLM's flags that mean nothing here, or only one thing: taken, so that its manifests work.

Owns the list. A flag stands here with the values that change nothing on this server; any other
value is refused, since nothing that is asked for may be ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from refectory_server.cli.options import GroupedOption, SizeType

logger = logging.getLogger(__name__)

GROUP = "compatibility"


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """`values` are those that change nothing; None: any of its type."""

    name: str
    kind: Any
    values: tuple[Any, ...] | None
    why: str
    short: tuple[str, ...] = ()

    @property
    def parameter(self) -> str:
        """The name under which click hands the value on."""
        return "vllm_" + self.name.replace("-", "_")


VLLM_FLAGS = (
    VllmFlag("tensor-parallel-size", SizeType(), (1,), "one device serves a model", ("-tp",)),
    VllmFlag("pipeline-parallel-size", SizeType(), (1,), "one device serves a model", ("-pp",)),
    VllmFlag("data-parallel-size", SizeType(), (1,), "replicas are pods of their own", ("-dp",)),
    VllmFlag("api-server-count", SizeType(), (1,), "one API process"),
    VllmFlag("device", click.STRING, ("auto", "cpu"), "the CPU is the only device yet"),
    VllmFlag("gpu-memory-utilization", click.FLOAT, None, "there is no GPU to share out yet"),
    VllmFlag("swap-space", click.FLOAT, None, "preempted requests are computed again"),
    VllmFlag("cpu-offload-gb", click.FLOAT, (0.0,), "weights stay where they are"),
    VllmFlag("kv-cache-dtype", click.STRING, ("auto",), "the KV cache has the model's precision"),
    VllmFlag("load-format", click.STRING, ("auto", "safetensors", "gguf"), "told by the files"),
    VllmFlag("runner", click.STRING, ("auto", "generate"), "only generation is served"),
    VllmFlag("task", click.STRING, ("auto", "generate"), "only generation is served"),
    VllmFlag("prefix-caching-hash-algo", click.STRING, ("sha256",), "the only hash"),
    VllmFlag("enable-chunked-prefill", bool, (True,), "prompts are always computed in chunks"),
    VllmFlag("scheduler-reserve-full-isl", bool, (True,), "admission always reserves the prompt"),
    VllmFlag("async-scheduling", bool, (True, False), "a step's order is the server's own affair"),
    VllmFlag("enforce-eager", bool, (True, False), "nothing is compiled or captured"),
    VllmFlag("max-seq-len-to-capture", SizeType(), None, "nothing is captured"),
    VllmFlag("trust-remote-code", bool, (True, False), "code of a model is never run"),
    VllmFlag("enable-prompt-tokens-details", bool, (True,), "always part of the usage"),
    VllmFlag("enable-request-id-headers", bool, (True,), "always sent"),
    VllmFlag("enable-log-requests", bool, (True, False), "a line at each end, without its text"),
    VllmFlag("disable-log-requests", bool, (True, False), "a line at each end, without its text"),
    VllmFlag("disable-log-stats", bool, (True, False), "/metrics has the statistics"),
    VllmFlag("disable-uvicorn-access-log", bool, (True,), "there is no access log"),
    VllmFlag("uvicorn-log-level", click.STRING, None, "--log-level is for all of the server"),
)


def vllm_flag_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: adds them all to a command."""
    for flag in reversed(VLLM_FLAGS):
        function = _option(flag)(function)
    return function


def _option(flag: VllmFlag) -> Callable[..., Any]:
    long = f"--{flag.name}/--no-{flag.name}" if flag.kind is bool else f"--{flag.name}"
    allowed = "" if flag.values is None or flag.kind is bool else f" Allowed: {_listed(flag)}."
    return click.option(
        *flag.short,
        long,
        flag.parameter,
        cls=GroupedOption,
        group=GROUP,
        field_name=flag.name.replace("-", "_"),
        type=flag.kind,
        default=None,
        callback=_check,
        help=f"No effect: {flag.why}.{allowed}",
    )


def _check(_ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    (flag,) = (flag for flag in VLLM_FLAGS if flag.parameter == param.name)
    if value is not None and flag.values is not None and value not in flag.values:
        raise click.BadParameter(f"{value} is not to be had: {flag.why}; allowed: {_listed(flag)}")
    return value


def _listed(flag: VllmFlag) -> str:
    return ", ".join(str(value).lower() for value in flag.values or ())


def log_vllm_flags(values: Mapping[str, Any]) -> None:
    """Say which of a command's values were given for nothing."""
    for flag in VLLM_FLAGS:
        if values[flag.parameter] is not None:
            logger.info("--%s %s has no effect: %s", flag.name, values[flag.parameter], flag.why)
