"""What may be imported without what, proven in a fresh interpreter that refuses the rest.

import-linter reads the source; these tests run it, third-party code included.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import refectory_operator
import refectory_server

TENSORS = ("torch", "triton", "transformers", "safetensors", "refectory_kernels")
WEB = ("fastapi", "starlette", "uvicorn", "zmq")

BLOCKER = """
import importlib, json, sys
modules, blocked = json.loads(sys.argv[1])

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
for name in modules:
    importlib.import_module(name)
print(*sorted(set(modules) & set(sys.modules)), sep="\\n")
"""


def import_without(modules: list[str], blocked: tuple[str, ...]) -> list[str]:
    """Import `modules` in an interpreter that refuses `blocked`; returns what got imported."""
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", BLOCKER, json.dumps([modules, blocked])],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def modules_of(package_path: list[str], prefix: str) -> list[str]:
    """Every module below a package, itself left out; found without importing any."""
    names = []
    for info in pkgutil.iter_modules(package_path):
        names.append(f"{prefix}.{info.name}")
        if info.ispkg:
            below = [str(Path(folder) / info.name) for folder in package_path]
            names += modules_of(below, f"{prefix}.{info.name}")
    return [name for name in names if not name.endswith(".__main__")]


def server_modules(*parts: str) -> list[str]:
    everything = modules_of(list(refectory_server.__path__), "refectory_server")
    wanted = [f"refectory_server.{part}" for part in parts]
    found = [
        name
        for name in everything
        if any(name == part or name.startswith(part + ".") for part in wanted)
    ]
    assert set(wanted) <= set(found)
    return sorted(found)


def test_the_blocker_blocks() -> None:
    with pytest.raises(AssertionError, match="torch is blocked"):
        import_without(["torch"], TENSORS)


def test_the_operator_needs_neither_server_nor_kernels_nor_torch() -> None:
    modules = modules_of(list(refectory_operator.__path__), "refectory_operator")
    assert "refectory_operator.cli" in modules
    blocked = (*TENSORS, "fastapi", "refectory_server")
    assert import_without(modules, blocked) == sorted(modules)


def test_the_core_needs_no_library_at_all() -> None:
    modules = server_modules("config", "core", "errors", "runner.interface", "sampling_params")
    assert import_without(modules, (*TENSORS, *WEB, "msgspec", "numpy", "pydantic")) == modules


def test_the_server_behind_its_simulator_needs_no_tensors() -> None:
    modules = server_modules(
        "api", "cli", "engine", "runner.load", "runner.simulated_model_runner", "tokenizer"
    )
    assert import_without(modules, TENSORS) == modules


def test_importing_the_server_package_is_cheap() -> None:
    assert import_without(["refectory_server"], (*TENSORS, *WEB, "asyncio", "numpy")) == [
        "refectory_server"
    ]
