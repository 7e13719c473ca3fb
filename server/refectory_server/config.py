"""The frozen configuration, in groups; one field is one flag.

Owns names, defaults, ranges and help texts: the command line, the environment variables, the
config file and the keywords of `LLM` are all derived from these fields. Knows no click, no torch,
no environment.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

EMBEDDED_MODEL = "embedded://smollm2-135m"
DEFAULT_TERMINATION_LOG = "/dev/termination-log"


MAX_INT = 2**63 - 1
"""Largest number of an option without a maximum of its own: it travels as 64 bits."""
DEFAULT_TOKEN_LIMIT = 2048
MIN_MODEL_LEN = 2
"""A token of prompt and one of output: with less, every request would be refused."""


class ConfigError(ValueError):
    """A field is out of range. The message names flag, value and range."""


def option(
    default: Any,
    help: str,  # noqa: A002 - the word every command line library uses
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    metavar: str | None = None,
    secret: bool = False,
) -> Any:
    """A dataclass field that is also a command line option. A secret stays out of the repr."""
    return field(
        default=default,
        repr=not secret,
        metadata={
            "help": help,
            "minimum": minimum,
            "maximum": maximum,
            "metavar": metavar,
        },
    )


def flag_name(field_name: str) -> str:
    return "--" + field_name.replace("_", "-")


class _Checked:
    """Checks every option's range when a config object is made."""

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            flag = flag_name(f.name)
            if isinstance(value, str | tuple):
                _check_texts(flag, (value,) if isinstance(value, str) else value)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                low, high = f.metadata.get("minimum"), f.metadata.get("maximum")
                _check_number(flag, value, low, MAX_INT if high is None else high)


def _check_texts(flag: str, texts: tuple[str, ...]) -> None:
    """The messages leave the values out: they may be keys."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{flag} holds bytes that are no UTF-8 text") from None


def _check_number(flag: str, value: float, low: float | None, high: float) -> None:
    is_in_range = math.isfinite(value) and (low is None or low <= value) and value <= high
    if not is_in_range:
        bounds = ["" if low is None else _plain(low), _plain(high)]
        raise ConfigError(f"{flag} is {value}; allowed is [{', '.join(bounds)}]")


def _plain(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(_Checked):
    """Which model, in which precision."""

    model: str = EMBEDDED_MODEL
    """Positional on the command line: an embedded:// name, a folder, a .gguf file, or a hub id."""
    revision: str | None = option(
        None, "Branch, tag or commit of a model from a hub. Default: main."
    )
    download_dir: str | None = option(
        None,
        "Folder for models from a hub. Default: refectory/ in HF_HOME, or in ~/.cache/huggingface.",
        metavar="DIR",
    )
    served_model_name: tuple[str, ...] = option(
        (), "Name in the API, several allowed; the first labels the metrics. Default: the model."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = option(
        "auto",
        "Precision of weights and KV cache; auto is the checkpoint's, bfloat16 for one in "
        "float16 and for quantised GGUF.",
    )
    max_model_len: int | None = option(
        None,
        "Tokens of prompt and output together. Default: the model's own limit.",
        minimum=MIN_MODEL_LEN,
    )
    chat_template: str | None = option(
        None, "Chat template: a file or the Jinja text itself. Default: the model's."
    )
    generation_config: Literal["auto", "vllm"] = option(
        "auto", "auto: default sampling from the model's generation_config.json; vllm: ignore it."
    )
    max_logprobs: int = option(
        20,
        "Most probable tokens that a request may ask log-probabilities of, at most.",
        minimum=0,
    )
    seed: int = option(
        0, "Requests without a seed get theirs from a sequence that starts here.", minimum=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorConfig(_Checked):
    """A simulated model in place of a real one."""

    simulate: str | None = option(
        None,
        "Simulate this profile, no model and no torch needed: a shipped one "
        "(h100-llama-8b, instant, l4-llama-8b) or a YAML file.",
        metavar="PROFILE",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuConfig(_Checked):
    """Computing on processors."""

    cpu_threads: int | None = option(
        None,
        "Threads that compute, at most one a CPU. Default: one a physical core, and no more than "
        "the cgroup's CPU limit has whole CPUs.",
        minimum=1,
        maximum=1024,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig(_Checked):
    """The paged KV cache."""

    block_size: Literal[8, 16, 32, 64, 128] = option(16, "Tokens in a KV block.")
    kv_cache_memory_bytes: int | None = option(
        None,
        "Memory for KV blocks. Default on CPU: 40 % of the memory limit, at most 4 GiB.",
        minimum=1,
        metavar="BYTES",
    )
    num_gpu_blocks_override: int | None = option(
        None, "Exactly this many KV blocks, whatever the memory (tests, experiments).", minimum=1
    )
    enable_prefix_caching: bool = option(True, "Reuse the KV blocks of equal prefixes.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig(_Checked):
    """Limits of a step and of the queue."""

    max_num_batched_tokens: int | None = option(
        None,
        "Tokens in one step at most. Default: 2048; on the native CPU kernels as many as take 0.05 "
        "to 0.15 s.",
        minimum=1,
    )
    max_num_seqs: int = option(128, "Requests in one step at most.", minimum=1)
    scheduling_policy: Literal["fcfs", "priority"] = option(
        "fcfs", "fcfs: by arrival; priority: lower value first, then by arrival."
    )
    long_prefill_token_threshold: int = option(
        0, "Tokens of one prompt in one step at most; 0: no such limit.", minimum=0
    )
    watermark: float = option(
        0.01, "Share of the KV blocks kept free at admission.", minimum=0.0, maximum=0.5
    )
    max_num_queued_reqs: int | None = option(
        None, "Requests that may wait; beyond: 429. Default: 4 x max-num-seqs.", minimum=1
    )
    max_num_queued_tokens: int | None = option(
        None, "Prompt tokens that may wait; beyond: 429. Default: no such limit.", minimum=1
    )

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        if self.token_limit < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens is {self.max_num_batched_tokens}, less than "
                f"--max-num-seqs {self.max_num_seqs}: every running request needs a token a step"
            )

    @property
    def token_limit(self) -> int:
        """Tokens in one step at most, chosen or not."""
        return self.max_num_batched_tokens or max(DEFAULT_TOKEN_LIMIT, self.max_num_seqs)

    @property
    def queue_limit(self) -> int:
        """Requests that may wait."""
        return self.max_num_queued_reqs or 4 * self.max_num_seqs


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConfig(_Checked):
    """The HTTP side."""

    host: str = option("0.0.0.0", "Address to listen on.")
    port: int = option(8000, "Port to listen on.", minimum=0, maximum=65535)
    metrics_port: int | None = option(
        None,
        "Second port, for /metrics, /health and /ready only. Default: none, --port has them.",
        minimum=0,
        maximum=65535,
    )
    api_key: tuple[str, ...] = option(
        (), "Key that requests must carry, several allowed.", secret=True
    )
    ssl_certfile: str | None = option(
        None, "PEM file of the certificate chain: HTTPS on every port.", metavar="FILE"
    )
    ssl_keyfile: str | None = option(
        None, "PEM file of its key, where the chain's file does not hold it.", metavar="FILE"
    )
    api_key_file: str | None = option(None, "File of keys, one a line.")
    request_timeout: float | None = option(
        None, "Seconds a request may wait for its first step; then 503.", minimum=0.001
    )
    shutdown_timeout: float = option(
        60.0, "Seconds to finish requests after SIGTERM.", minimum=0.0, maximum=3600.0
    )
    max_connection_age: float = option(
        60.0,
        "Seconds after which a connection is closed with its next response; 0: never.",
        minimum=0.0,
    )
    watchdog_timeout: float = option(
        300.0, "Seconds without a step, with work pending, that make /health fail.", minimum=1.0
    )
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "How much to log.")
    log_format: Literal["text", "json"] = option("text", "One line of text or of JSON a record.")
    termination_log: str = option(
        DEFAULT_TERMINATION_LOG,
        "File that says in JSON why the server ended by itself; the default only where it exists.",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        if any(not key or key != key.strip() for key in self.api_key):
            raise ConfigError(
                "--api-key has a key that is empty, or that begins or ends with white space; "
                "an empty one would let everybody in, and no client can send the others"
            )

    @property
    def has_keys(self) -> bool:
        return bool(self.api_key or self.api_key_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything `refectory serve` was told. Facts learned at start are `RunnerFacts`."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cpu: CpuConfig = field(default_factory=CpuConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    simulator: SimulatorConfig = field(default_factory=SimulatorConfig)
