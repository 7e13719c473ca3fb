"""The structs that cross to the native library: the same fields and sizes on both sides."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest

from refectory_kernels.cpu_abi import STRUCTS, address
from refectory_kernels.native import load_library

HEADER = Path(__file__).parents[2] / "kernels" / "cpu" / "abi.h"
TYPES = {
    "std::int32_t": ctypes.c_int32,
    "std::uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


def declared_structs() -> dict[str, list[tuple[str, object]]]:
    """Struct -> (field, ctypes type), read from the header."""
    text = re.sub(r"//.*", "", HEADER.read_text())
    structs = {}
    for name, body in re.findall(r"struct (\w+) \{(.*?)\};", text, re.DOTALL):
        fields: list[tuple[str, object]] = []
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            kind, names = re.fullmatch(r"(?:const )?([\w:]+\*?)\s+(.*)", declaration, re.S).groups()  # type: ignore[union-attr]
            for field in names.split(","):
                is_pointer = kind.endswith("*") or field.strip().startswith("*")
                fields.append((field.strip(" *\n"), ctypes.c_void_p if is_pointer else TYPES[kind]))
        structs[name] = fields
    return structs


def test_fields_are_the_headers_in_its_order() -> None:
    mirrored = {
        f"Refectory{struct.__name__.removesuffix('Struct')}": [*struct._fields_]
        for struct in STRUCTS
    }

    assert mirrored == declared_structs()
    assert [*mirrored] == [*declared_structs()]


def test_sizes_are_the_librarys() -> None:
    library = load_library()
    if library is None:
        pytest.skip("refectory_kernels was built without its native library")
    sizes = (ctypes.c_int32 * len(STRUCTS))()

    library.refectory_abi_sizes(sizes)

    assert [*sizes] == [ctypes.sizeof(struct) for struct in STRUCTS]


def test_address_refuses_what_is_not_contiguous() -> None:
    array = np.arange(6, dtype=np.int32)

    assert address(array[2:]) == address(array) + 8
    with pytest.raises(ValueError, match=r"strides \(8,\) is not contiguous"):
        address(array[::2])
