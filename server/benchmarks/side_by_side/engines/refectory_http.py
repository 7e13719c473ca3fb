"""Ours as it is served: `refectory serve` and one streaming client for each prompt, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib

from side_by_side.protocol import Engine, Settings, run_engine


class RefectoryHttp:
    def __init__(self, settings: Settings, stack: contextlib.ExitStack) -> None:
        from refectory_server.testing.server_process import server_process

        self._server = stack.enter_context(
            server_process(
                settings.model,
                "--dtype=bfloat16",
                f"--max-model-len={settings.max_len}",
                f"--max-num-seqs={settings.max_num_prompts}",
                "--no-enable-prefix-caching",
            )
        )
        self._server.wait_until_ready()

    def generate(
        self, prompts: list[list[int]], num_tokens: int
    ) -> tuple[int, list[list[int]] | None]:
        from refectory_server.bench.load import run_load
        from refectory_server.bench.workload import PlannedRequest

        plan = [PlannedRequest(prompt, num_tokens) for prompt in prompts]
        result = asyncio.run(run_load(self._server.url, plan))
        if errors := {record.error for record in result.records if record.error is not None}:
            raise RuntimeError("; ".join(sorted(errors)))
        return sum(record.num_output_tokens for record in result.records), None


def main() -> None:
    with contextlib.ExitStack() as stack:

        def load(settings: Settings) -> Engine:
            return RefectoryHttp(settings, stack)

        run_engine(load, ["refectory", "torch"])


if __name__ == "__main__":
    main()
