"""The distribution as pip makes it: sdist, wheels with and without the native library, and what
each gives in an environment of its own.

Every wheel is built from the sdist, so what the sdist lacks is missed here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("refectory_kernels", "refectory_operator", "refectory_server")
CONSTRAINTS = ROOT / "constraints.txt"
HAS_COMPILER = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")

pytestmark = pytest.mark.slow

BUILD_SDIST = """
import sys
from scikit_build_core.build import build_sdist
print(build_sdist(sys.argv[1]))
"""


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        env=os.environ | environment,
        cwd=ROOT / "tests",  # neither where the packages' folders lie nor where a wheel would
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(*arguments: str | Path, **environment: str) -> str:
    settings = ("--disable-pip-version-check", "--no-input")
    return run(sys.executable, "-P", "-m", "pip", *settings, *arguments, **environment)


def build_wheel(sdist: Path, folder: Path, *options: str, **environment: str) -> Path:
    where: tuple[str | Path, ...] = ("--wheel-dir", folder, *options, sdist)
    pip("wheel", "--no-deps", "--no-build-isolation", *where, **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


def names_in(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def native_libraries(wheel: Path) -> list[str]:
    return [name for name in names_in(wheel) if name.endswith((".so", ".dylib", ".dll"))]


def empty_venv(folder: Path) -> Path:
    """A virtual environment without pip; returns its interpreter."""
    run(sys.executable, "-P", "-m", "venv", "--without-pip", folder)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    done = subprocess.run(
        [sys.executable, "-P", "-c", BUILD_SDIST, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install` builds on this machine; here a compiler's warning is an error."""
    strict = "cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON"
    return build_wheel(sdist, tmp_path_factory.mktemp("wheel"), "-C", strict)


@pytest.fixture(scope="module")
def pure_wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What it builds where the native part is switched off."""
    folder = tmp_path_factory.mktemp("pure")
    return build_wheel(sdist, folder, "-C", "cmake.define.REFECTORY_NATIVE=OFF")


def test_the_sdist_holds_sources_and_neither_environment_nor_builds(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "CMakeLists.txt",
        "LICENSE",
        "README.md",
        "kernels/cpu/CMakeLists.txt",
        "kernels/refectory_kernels/__init__.py",
        "operator/refectory_operator/cli.py",
        "pyproject.toml",
        "server/refectory_server/core/scheduler.py",
    } <= names
    tops = {name.partition("/")[0] for name in names}
    assert not tops & {".venv", ".git", ".ci", "build", "dist", "e2e"}
    assert not [name for name in names if "__pycache__" in name]


def test_the_wheel_holds_the_three_typed_packages_and_nothing_else(pure_wheel: Path) -> None:
    names = names_in(pure_wheel)
    tops = {name.partition("/")[0] for name in names}
    assert sorted(top for top in tops if not top.endswith(".dist-info")) == list(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    components = [ROOT / package.removeprefix("refectory_") for package in PACKAGES]
    sources = {
        str(path.relative_to(component))
        for component, package in zip(components, PACKAGES, strict=True)
        for path in (component / package).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == sources
    assert [name for name in names if name.endswith("licenses/LICENSE")] != []


@pytest.mark.skipif(
    not HAS_COMPILER and os.environ.get("CI") != "true", reason="no C++ compiler; CI must have one"
)
def test_a_compiler_brings_the_native_library(wheel: Path) -> None:
    (library,) = native_libraries(wheel)
    assert library.startswith("refectory_kernels/librefectory_cpu.")
    assert "-py3-none-" in wheel.name


def test_the_native_part_can_be_switched_off(pure_wheel: Path) -> None:
    assert native_libraries(pure_wheel) == []


def test_without_a_compiler_the_wheel_lacks_the_native_library_only(
    sdist: Path, pure_wheel: Path, tmp_path: Path
) -> None:
    bare = build_wheel(sdist, tmp_path, CXX="no-such-compiler", CC="no-such-compiler")
    assert native_libraries(bare) == []
    assert names_in(bare) == names_in(pure_wheel)


def test_the_operator_installs_and_runs_without_torch(pure_wheel: Path, tmp_path: Path) -> None:
    python = empty_venv(tmp_path / "venv")
    pip("--python", python, "install", "--no-compile", "-c", CONSTRAINTS, f"{pure_wheel}[operator]")
    script = python.with_name("refectory-operator")
    assert "usage: refectory-operator" in run(script, "--help")
    assert run(script, "--version") == "refectory-operator 0.1.0\n"
    listed = pip("--python", python, "list", "--format", "freeze").split()
    installed = {line.partition("==")[0].lower().replace("_", "-") for line in listed}
    assert {"refectory", "kopf", "kubernetes", "httpx", "prometheus-client"} <= installed
    assert not installed & {"torch", "triton", "transformers", "fastapi", "uvicorn", "pyzmq"}
    run(python, "-P", "-c", "import kopf, kubernetes, httpx, refectory_operator.cli")


def test_the_server_runs_from_its_wheel_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    """The libraries are this environment's, the three packages the wheel's and no other's."""
    python = empty_venv(tmp_path / "venv")
    pip("--python", python, "install", "--no-deps", wheel)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(run(python, "-P", "-c", where).strip())
    (own / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for package in PACKAGES:
        code = f"import {package}; print({package}.__file__)"
        assert Path(run(python, "-P", "-c", code).strip()).is_relative_to(own)
    run(python, "-P", "-c", "import refectory_server.runner.load")
    assert "Usage: refectory" in run(python.with_name("refectory"), "--help")
