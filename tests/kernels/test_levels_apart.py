"""No level's instructions are in code that runs without it, however templates were merged."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files

import pytest

from refectory_kernels.cpu_level import available_levels
from refectory_kernels.native import LIBRARY_NAME

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
AVX512_REGISTER = re.compile(r"%zmm|%[xy]mm(?:1[6-9]|2\d|3[01])|%k[0-7]")


@pytest.fixture(scope="module")
def levels_of_functions() -> dict[str, set[str]]:
    """Demangled name of each function to the levels whose registers it uses."""
    if not available_levels():
        pytest.skip("refectory_kernels was built without its native library")
    if shutil.which("objdump") is None:
        pytest.skip("there is no objdump, which comes with every C++ compiler")
    found: dict[str, set[str]] = {}
    name = ""
    for line in _disassembly():
        if match := FUNCTION.match(line):
            name = match[1]
        elif AVX512_REGISTER.search(line):
            found.setdefault(name, set()).add("avx512")
        elif "%ymm" in line:
            found.setdefault(name, set()).add("avx2")
    return found


def _disassembly() -> Iterator[str]:
    library = str(files("refectory_kernels").joinpath(LIBRARY_NAME))
    done = subprocess.run(
        ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", library],
        capture_output=True,
        text=True,
        check=True,
    )
    yield from done.stdout.splitlines()


def test_the_library_has_code_of_both_levels(
    levels_of_functions: dict[str, set[str]],
) -> None:
    of_avx512 = [name for name in levels_of_functions if "avx512::" in name]
    of_avx2 = [name for name in levels_of_functions if "avx2::" in name]

    assert len(of_avx512) > 50
    assert len(of_avx2) > 50


def test_a_levels_registers_are_in_its_functions_only(
    levels_of_functions: dict[str, set[str]],
) -> None:
    strays = {
        name
        for name, levels in levels_of_functions.items()
        if ("avx512" in levels and "avx512::" not in name)
        or ("avx2" in levels and "avx512::" not in name and "avx2::" not in name)
    }

    assert strays == set()
