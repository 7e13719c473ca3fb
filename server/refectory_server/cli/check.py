"""`refectory serve --check`: would these arguments serve this model? Loads no weights, no torch.

For a pod that goes ahead of the others: no GPU, little memory, seconds. Of a hub's model only the
small files and the weights' headers are fetched.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refectory_server.api.auth import load_api_keys
from refectory_server.api.service import served_model_names
from refectory_server.cli.environment import CPU_LEVEL_VARIABLE
from refectory_server.config import ServerConfig
from refectory_server.errors import StartupError
from refectory_server.models.hub_id import HubId
from refectory_server.models.model_check import CheckedModel, ReadHeaders, check_model
from refectory_server.models.model_len import max_model_len
from refectory_server.models.source import ModelFiles, hub_id_of, resolve_model
from refectory_server.simulation_profile import load_profile
from refectory_server.text_side import TextSide


def check(config: ServerConfig) -> str:
    """What would be served, in one line. Raises `StartupError` for what start would refuse."""
    load_api_keys(config.api)
    names = ", ".join(served_model_names(config.model))
    if config.simulator.simulate is not None:
        profile = load_profile(config.simulator.simulate)
        TextSide.load(config)
        if profile.faults.fail_load is not None:
            raise StartupError(profile.faults.fail_load, reason="SimulatedFault")
        return f"{names}: simulated, {profile.description}"
    if os.environ.get(CPU_LEVEL_VARIABLE):  # by itself the level is never refused
        from refectory_server.runner.load_cpu import choose_level

        choose_level(config)
    hub_id = hub_id_of(config.model.model, config.model.revision)
    if hub_id is None:
        files = resolve_model(config.model.model)
        return f"{names}: {_check_files(config, files, None)}"
    with _small_files(hub_id) as (folder, read_headers):
        files = ModelFiles(folder, str(hub_id))
        return f"{names}: {_check_files(config, files, read_headers)}"


def _check_files(config: ServerConfig, files: ModelFiles, read_headers: ReadHeaders | None) -> str:
    model = check_model(files, read_headers)
    local = dataclasses.replace(config.model, model=str(files.path))
    text = TextSide.load(dataclasses.replace(config, model=local))
    template = "a chat template" if text.chat_template else "no chat template"
    return f"{_described(model, config.model.max_model_len)}, {template}"


@contextmanager
def _small_files(hub_id: HubId) -> Iterator[tuple[Path, ReadHeaders]]:
    from refectory_server.models.hub_headers import HubHeaders
    from refectory_server.models.hub_repo import HubRepo
    from refectory_server.models.retries import Retries

    headers = HubHeaders(HubRepo(hub_id), Retries())
    with tempfile.TemporaryDirectory(prefix="refectory-check-") as folder:
        headers.fetch_texts(Path(folder))
        yield Path(folder), headers.read


def _described(model: CheckedModel, wanted_model_len: int | None) -> str:
    spec = model.spec
    model_len = max_model_len(spec, wanted_model_len)
    return f"{spec.architecture}, {model.num_tensors} tensors, max_model_len {model_len}"
