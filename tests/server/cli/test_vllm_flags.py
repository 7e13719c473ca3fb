"""Command lines of public vLLM manifests: what means nothing here is taken, and nothing else."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from refectory_server.cli.main import main
from refectory_server.cli.vllm_flags import VLLM_FLAGS

CHECK = ["serve", "--simulate=instant", "--check"]

MANIFESTS = {
    "a production-stack pod": (
        "meta-llama/Llama-3.1-8B-Instruct --host 0.0.0.0 --port 8000 --max-model-len 4096 "
        "--dtype bfloat16 --tensor-parallel-size 1 --max-num-seqs 32 --gpu_memory_utilization 0.9 "
        "--enable-chunked-prefill --enable-prefix-caching --disable-log-requests"
    ),
    "a KServe runtime": (
        "Qwen/Qwen2.5-7B-Instruct --served-model-name qwen --max-model-len=8k "
        "--trust-remote-code --enforce-eager --max-num-batched-tokens 4k --seed 1 "
        "--no-enable-prefix-caching --disable-log-stats --load-format auto"
    ),
    "an operator's rendering": (
        "mistralai/Mistral-7B-Instruct-v0.3 --served_model_name mistral --block-size 16 "
        "-tp 1 -pp 1 --kv-cache-dtype auto --scheduling-policy priority --api-key k1 "
        "--swap-space 4 --uvicorn-log-level warning --enable-prompt-tokens-details"
    ),
}


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifests_flags_parse(manifest: str) -> None:
    result = CliRunner().invoke(main, [*CHECK, *manifest.split()])
    assert result.exit_code == 0, result.output
    assert "ok: " in result.output


def test_what_has_no_effect_is_logged() -> None:
    result = CliRunner().invoke(main, [*CHECK, "--enforce-eager", "--gpu-memory-utilization=0.5"])
    assert "--gpu-memory-utilization 0.5 has no effect: there is no GPU" in result.output
    assert "--enforce-eager True has no effect: nothing is compiled" in result.output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-tp", "2"], "2 is not to be had: one device serves a model; allowed: 1"),
        (["--no-enable-chunked-prefill"], "prompts are always computed in chunks; allowed: true"),
        (["--kv-cache-dtype=fp8"], "fp8 is not to be had"),
        (["--enable-auto-tool-choice"], "No such option '--enable-auto-tool-choice'"),
        (["--quantization=awq"], "No such option '--quantization'"),
    ],
)
def test_what_would_have_an_effect_is_refused(args: list[str], said: str) -> None:
    result = CliRunner().invoke(main, [*CHECK, *args])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_the_help_says_why_each_has_none() -> None:
    text = " ".join(CliRunner().invoke(main, ["serve", "--help=compatibility"]).output.split())
    for flag in VLLM_FLAGS:
        assert f"--{flag.name}" in text
        assert flag.why.split()[0] in text
