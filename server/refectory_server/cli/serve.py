"""`refectory serve`: argv and environment -> `ServerConfig`, then run until told to stop.

Raises what `run_server` raises; `main` turns it into an exit code.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from typing import Any, TypeVar

import click

from refectory_server.cli.config_file import config_file_option
from refectory_server.cli.environment import log_unknown_variables
from refectory_server.cli.options import GroupedCommand, config_options
from refectory_server.cli.standard_streams import open_standard_streams
from refectory_server.cli.termination import TERMINATION_LOG_KEY
from refectory_server.cli.vllm_flags import log_vllm_flags, vllm_flag_options
from refectory_server.config import (
    EMBEDDED_MODEL,
    ApiConfig,
    CacheConfig,
    ConfigError,
    CpuConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
    SimulatorConfig,
)
from refectory_server.log import configure_logging
from refectory_server.simulation_profile import load_profile


@click.command(
    cls=GroupedCommand,
    # vLLM's manifests spell flags with dashes or underscores.
    context_settings={"token_normalize_func": lambda token: token.replace("_", "-")},
)
@click.argument("model", required=False)
@click.option(
    "--check",
    "check_only",
    is_flag=True,
    help="Check flags, config, tokenizer and the weights' headers; print one line and exit.",
)
@config_file_option
@config_options(ModelConfig, "model")
@config_options(SimulatorConfig, "simulator")
@config_options(CpuConfig, "cpu")
@config_options(CacheConfig, "cache")
@config_options(SchedulerConfig, "scheduler")
@config_options(ApiConfig, "api")
@vllm_flag_options
def serve(check_only: bool, **values: Any) -> None:
    """Serve MODEL over an OpenAI-compatible API.

    MODEL is a folder with safetensors weights, a .gguf file, org/name of a model hub, or an
    embedded model; without it embedded://smollm2-135m is served. Every option is also an
    environment variable: REFECTORY_PORT for --port.
    """
    ctx = click.get_current_context()
    # From here on the config file has been read: what went wrong is told where it says.
    ctx.meta[TERMINATION_LOG_KEY] = values["termination_log"]
    try:
        config = _make_config(values)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    configure_logging(config.api.log_level, config.api.log_format)
    log_unknown_variables(ctx.command.params, os.environ)
    log_vllm_flags(values)
    if check_only:
        from refectory_server.cli.check import check

        click.echo(f"ok: {check(config)}")
        return
    # After parsing: `--help` and a wrong flag are answered without the web framework's import.
    import uvloop

    from refectory_server.cli.run_server import run_server

    open_standard_streams()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            sys.exit(runner.run(run_server(config)))
    except KeyboardInterrupt:  # before the server took the signal over
        sys.exit(128 + signal.SIGINT)


def _make_config(values: dict[str, Any]) -> ServerConfig:
    """Raises `ConfigError` for a flag, `StartupError` for a simulation profile."""
    model, names = values["model"], values["served_model_name"]
    if values["simulate"] is not None:
        profile = load_profile(values["simulate"])
        if model is None and not names:
            names = (profile.model,)
    values = {**values, "model": model or EMBEDDED_MODEL, "served_model_name": names}
    return ServerConfig(
        model=_pick(ModelConfig, values),
        cpu=_pick(CpuConfig, values),
        cache=_pick(CacheConfig, values),
        scheduler=_pick(SchedulerConfig, values),
        api=_pick(ApiConfig, values),
        simulator=_pick(SimulatorConfig, values),
    )


_Config = TypeVar("_Config")


def _pick(config_class: type[_Config], values: dict[str, Any]) -> _Config:
    names = {f.name for f in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    return config_class(**{name: value for name, value in values.items() if name in names})
