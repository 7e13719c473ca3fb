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


@pytest.fixture(scope="module")
def functions_with_vectors() -> dict[str, set[str]]:
    """Demangled name of each function that uses vector registers to "ymm" and "zmm"."""
    if not available_levels():
        pytest.skip("refectory_kernels was built without its native library")
    if shutil.which("objdump") is None:
        pytest.skip("there is no objdump, which comes with every C++ compiler")
    found: dict[str, set[str]] = {}
    name = ""
    for line in _disassembly():
        if match := FUNCTION.match(line):
            name = match[1]
        elif "mm" in line:
            found.setdefault(name, set()).update(re.findall(r"%([yz])mm", line))
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
    functions_with_vectors: dict[str, set[str]],
) -> None:
    of_avx512 = [name for name in functions_with_vectors if "avx512::" in name]
    of_avx2 = [name for name in functions_with_vectors if "avx2::" in name]

    assert len(of_avx512) > 50
    assert len(of_avx2) > 50


def test_wide_registers_are_in_their_levels_functions_only(
    functions_with_vectors: dict[str, set[str]],
) -> None:
    strays = {
        name
        for name, widths in functions_with_vectors.items()
        if ("z" in widths and "avx512::" not in name)
        or ("y" in widths and "avx512::" not in name and "avx2::" not in name)
    }

    assert strays == set()
