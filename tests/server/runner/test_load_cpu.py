"""REFECTORY_CPU_LEVEL, and what computes without it: a runner of that kind, or one clear line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from refectory_kernels import native
from refectory_kernels.cpu_level import CpuLevel, available_levels
from refectory_server.config import CacheConfig, ModelConfig, ServerConfig
from refectory_server.errors import StartupError
from refectory_server.runner.interface import ModelRunner
from refectory_server.runner.load import load_runner
from refectory_server.testing.tiny_llama import TinyPair, make_tiny_llama


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(native, "LIBRARY_NAME", "librefectory_absent.so")
    native.load_library.cache_clear()
    yield
    native.load_library.cache_clear()


def load(pair: TinyPair, block_size: Literal[8, 16] = 16) -> ModelRunner:
    config = ServerConfig(
        model=ModelConfig(model=str(pair.folder)),
        cache=CacheConfig(num_gpu_blocks_override=40, block_size=block_size),
    )
    return load_runner(config, lambda phase, progress: None)


def refusal(pair: TinyPair, block_size: Literal[8, 16] = 16) -> str:
    with pytest.raises(StartupError) as caught:
        load(pair, block_size)
    assert caught.value.reason == "CpuLevelUnavailable"
    return str(caught.value)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_level_that_is_asked_for_computes_and_is_told(
    tiny_pair: TinyPair,
    level: CpuLevel | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("REFECTORY_CPU_LEVEL", level or "torch")
    caplog.set_level(logging.INFO)

    description = load(tiny_pair).facts.description

    kind = "torch " if level is None else f"native {level} on cpu, float32, "
    assert description.startswith(kind)
    assert f"runner: {description}" in caplog.messages
    assert warnings(caplog) == []


def test_the_best_level_computes_where_none_is_asked_for(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REFECTORY_CPU_LEVEL", raising=False)

    best = [f"native {level}" for level in available_levels()] or ["torch"]
    assert load(tiny_pair).facts.description.startswith(best[-1])


def test_an_unknown_level_is_refused_with_those_there_are(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFECTORY_CPU_LEVEL", "sse9")

    allowed = ", ".join([*available_levels(), "torch"])
    assert refusal(tiny_pair) == f"REFECTORY_CPU_LEVEL is 'sse9'; allowed here: {allowed}"


def test_a_level_that_the_processor_lacks_is_refused(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "refectory_server.runner.load_cpu.available_levels", lambda: (CpuLevel.AVX2,)
    )
    monkeypatch.setenv("REFECTORY_CPU_LEVEL", "avx512")

    assert refusal(tiny_pair) == "REFECTORY_CPU_LEVEL is 'avx512'; allowed here: avx2, torch"


@pytest.mark.usefixtures("no_library")
def test_without_the_library_torch_computes_and_says_so_loudly(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("REFECTORY_CPU_LEVEL", "avx2")
    assert refusal(tiny_pair) == "REFECTORY_CPU_LEVEL is 'avx2'; allowed here: torch"
    monkeypatch.delenv("REFECTORY_CPU_LEVEL")

    assert load(tiny_pair).facts.description.startswith("torch ")

    (message,) = warnings(caplog)
    assert message.startswith("no native CPU kernels: ")
    assert message.endswith("plain torch computes, several times slower")


@pytest.mark.skipif(not available_levels(), reason="no native library, or no level of it runs here")
def test_blocks_that_the_kernels_do_not_have(
    tiny_pair: TinyPair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    best = available_levels()[-1]
    monkeypatch.delenv("REFECTORY_CPU_LEVEL", raising=False)

    assert load(tiny_pair, block_size=8).facts.description.startswith("torch ")

    assert warnings(caplog) == [
        "--block-size 8: the native CPU kernels need a multiple of 16; plain torch computes, "
        "several times slower"
    ]
    monkeypatch.setenv("REFECTORY_CPU_LEVEL", best)
    assert refusal(tiny_pair, block_size=8) == (
        f"REFECTORY_CPU_LEVEL is {best!s}, but --block-size is 8; "
        "allowed with it are multiples of 16"
    )


@pytest.mark.skipif(not available_levels(), reason="no native library, or no level of it runs here")
def test_heads_that_the_kernels_do_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = TinyPair(tmp_path, make_tiny_llama(tmp_path, head_dim=258))
    monkeypatch.delenv("REFECTORY_CPU_LEVEL", raising=False)

    assert refusal(pair) == (
        "head_dim is 258; allowed are even ones, 2 to 256; REFECTORY_CPU_LEVEL=torch has no "
        "such limit and is several times slower"
    )
