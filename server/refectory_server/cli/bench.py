"""`refectory bench`: measures a server from outside. `serve` sends it load."""

from __future__ import annotations

import asyncio
import datetime
import math
from collections import Counter
from pathlib import Path
from typing import Any

import click

from refectory_server.errors import StartupError

MAX_ERROR_LINES = 5
COMPLETIONS_PATH = "/v1/completions"


@click.group(context_settings={"token_normalize_func": lambda token: token.replace("_", "-")})
def bench() -> None:
    """Measure servers. Needs the extra `bench`."""


@bench.command(
    short_help="Send a server load and print what its clients felt.",
    context_settings={"show_default": True},
)
@click.option("--base-url", help="The server, with or without /v1. Default: http://HOST:PORT.")
@click.option("--host", default="127.0.0.1", help="The server's, where there is no --base-url.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    help="The server's, where there is no --base-url.",
)
@click.option(
    "--backend",
    type=click.Choice(["openai", "vllm"]),
    default="openai",
    help="No effect: both are OpenAI's completions.",
)
@click.option(
    "--endpoint",
    type=click.Choice([COMPLETIONS_PATH]),
    default=COMPLETIONS_PATH,
    help="No effect: the only one.",
)
@click.option(
    "--dataset-name",
    type=click.Choice(["random"]),
    default="random",
    help="No effect: the only one.",
)
@click.option("--model", help="Name in the requests. Default: none, the server's own.")
@click.option("--num-prompts", type=click.IntRange(1), default=1000, help="Requests in all.")
@click.option("--random-input-len", type=click.IntRange(1), default=1024, help="Words of a prompt.")
@click.option(
    "--random-output-len", type=click.IntRange(1), default=128, help="Tokens of an answer."
)
@click.option(
    "--random-range-ratio",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    help="Draw both lengths from [length x (1 - ratio), length x (1 + ratio)].",
)
@click.option(
    "--request-rate",
    type=click.FloatRange(0, min_open=True),
    default=math.inf,
    help="Arrivals a second; inf: all at once.",
)
@click.option(
    "--burstiness",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    help="Shape of the gamma distribution of arrivals; 1: Poisson.",
)
@click.option("--max-concurrency", type=click.IntRange(1), help="Requests in flight at most.")
@click.option("--num-warmups", type=click.IntRange(0), default=0, help="Requests thrown away.")
@click.option("--seed", type=int, default=0, help="Of prompts, lengths and arrivals.")
@click.option(
    "--ignore-eos/--no-ignore-eos", default=False, help="Go on past the model's end tokens."
)
@click.option("--save-result", is_flag=True, help="Write the JSON too.")
@click.option(
    "--result-dir", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Where."
)
@click.option("--result-filename", help="Default: refectory-RATEqps-TIME.json.")
def serve(**options: Any) -> None:
    """Send completions of random words to a server and print what its clients felt.

    The flags are a subset of those of `vllm bench serve`, the printed block and the JSON are as
    there. OPENAI_API_KEY is sent, if set.
    """
    try:
        from refectory_server.bench.load import completions_url, run_load
        from refectory_server.bench.summary import format_block, summarise
        from refectory_server.bench.workload import RandomWorkload
    except ModuleNotFoundError as error:
        raise StartupError(
            f"refectory bench needs {error.name}: pip install 'refectory[bench]'",
            reason="MissingPackage",
        ) from error
    import msgspec

    base_url = options["base_url"] or f"http://{options['host']}:{options['port']}"
    try:
        completions_url(base_url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--base-url") from error

    def workload(num_prompts: int, seed: int, request_rate: float) -> RandomWorkload:
        return RandomWorkload(
            num_prompts=num_prompts,
            input_len=options["random_input_len"],
            output_len=options["random_output_len"],
            range_ratio=options["random_range_ratio"],
            request_rate=request_rate,
            burstiness=options["burstiness"],
            seed=seed,
        )

    def load(workload: RandomWorkload) -> Any:
        return asyncio.run(
            run_load(
                base_url,
                workload.requests(),
                model=options["model"],
                max_concurrency=options["max_concurrency"],
                ignore_eos=options["ignore_eos"],
            )
        )

    if options["num_warmups"]:
        load(workload(options["num_warmups"], options["seed"] - 1, math.inf))
    result = load(workload(options["num_prompts"], options["seed"], options["request_rate"]))
    summary = summarise(result)
    click.echo(format_block(summary))
    errors = Counter(record.error for record in result.records if record.error is not None)
    for text, count in errors.most_common(MAX_ERROR_LINES):
        click.echo(f"{count} failed: {text}", err=True)
    if options["save_result"]:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        name = options["result_filename"] or f"refectory-{options['request_rate']}qps-{now}.json"
        path = options["result_dir"] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {key: value for key, value in options.items() if not isinstance(value, Path)}
        path.write_bytes(msgspec.json.encode({"date": now, **metadata, **summary}) + b"\n")
    if errors:
        raise click.exceptions.Exit(1)
