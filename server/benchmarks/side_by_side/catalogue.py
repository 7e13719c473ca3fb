"""The engines that are compared: where each lives, and which form of a model it reads.

Owns the layout of the peers' folder: one virtual environment an engine, and `models/`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

OURS = "refectory"
"""The engine that ratios refer to."""


class EngineAbsent(Exception):
    """This engine cannot run here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    name: str
    title: str
    module: str
    """In `engines/`."""
    environment: str | None = None
    """Folder of its virtual environment; None: the Python that runs this."""
    model_suffix: str = ""
    """What is added to the model's name for the form that it reads."""
    variant: str = ""

    def python(self, peers: Path | None) -> Path:
        """Raises `EngineAbsent`."""
        if self.environment is None:
            return Path(sys.executable)
        if peers is None:
            raise EngineAbsent("no folder of environments was named")
        python = peers / self.environment / "bin" / "python"
        if not python.is_file():
            raise EngineAbsent(f"no environment {self.environment}")
        return python

    def model(self, peers: Path | None, name: str) -> str:
        """Raises `EngineAbsent`. An embedded model is one that we alone can read."""
        if name.startswith("embedded://"):
            if self.environment is None:
                return name
            raise EngineAbsent(f"does not read {name}")
        if peers is None:
            raise EngineAbsent("no folder of models was named")
        path = peers / "models" / (name + self.model_suffix)
        if not path.exists():
            raise EngineAbsent(f"no model {path.name}")
        return str(path)

    def command(self) -> str:
        """As it can be shown: without the machine's paths."""
        environment = self.environment or ".venv"
        variant = f" ({self.variant})" if self.variant else ""
        return f"{environment}/bin/python -P -m {module_path(self.module)}{variant}"


def module_path(module: str) -> str:
    return f"side_by_side.engines.{module}"


CATALOGUE = (
    EngineSpec(name=OURS, title="Refectory, in process", module="refectory"),
    EngineSpec(name="refectory-http", title="Refectory, HTTP streams", module="refectory_http"),
    EngineSpec(
        name="openvino-f32",
        title="OpenVINO GenAI, f32",
        module="openvino_genai",
        environment="openvino",
        model_suffix="-openvino",
        variant="f32",
    ),
    EngineSpec(
        name="openvino-bf16",
        title="OpenVINO GenAI, bf16",
        module="openvino_genai",
        environment="openvino",
        model_suffix="-openvino",
        variant="bf16",
    ),
    EngineSpec(name="vllm", title="vLLM CPU, bf16", module="vllm_cpu", environment="vllm"),
    EngineSpec(
        name="llamacpp",
        title="llama.cpp, bf16",
        module="llamacpp",
        environment="llamacpp",
        model_suffix="-bf16.gguf",
    ),
    EngineSpec(
        name="transformers",
        title="transformers, bf16, static batch",
        module="transformers_static",
        environment="transformers",
    ),
)


def choose(names: list[str]) -> list[EngineSpec]:
    """The named engines, all without a name. Raises `ValueError`."""
    known = {spec.name: spec for spec in CATALOGUE}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no engine {name!r}; allowed are {', '.join(known)}")
    return [known[name] for name in names] or list(CATALOGUE)
