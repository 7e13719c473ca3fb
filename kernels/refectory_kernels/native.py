"""The native library: finding it, loading it, and what it says about the processor.

The library is optional (a build without a C++ compiler has none): then everything here returns
None.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

LIBRARY_NAME = "librefectory_cpu.so"
_POINTER = ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "refectory_cpu_features": (ctypes.c_uint32,),
    "refectory_last_error": (ctypes.c_char_p,),
    "refectory_decoder_create": (_POINTER, ctypes.c_char_p, _POINTER),
    "refectory_decoder_destroy": (None, _POINTER),
    "refectory_decoder_add_rotary_table": (ctypes.c_int, _POINTER, _POINTER, _POINTER),
    "refectory_decoder_add_layer": (ctypes.c_int, _POINTER, _POINTER),
    "refectory_decoder_set_ends": (ctypes.c_int, _POINTER, _POINTER, _POINTER, _POINTER),
    "refectory_decoder_copy_blocks": (ctypes.c_int, _POINTER, _POINTER, _POINTER, ctypes.c_int),
    "refectory_decoder_step": (ctypes.c_int, _POINTER, _POINTER),
    "refectory_sample": (
        *(ctypes.c_int, ctypes.c_char_p),
        *(_POINTER, ctypes.c_int, ctypes.c_int, _POINTER, _POINTER),
    ),
}
"""Result, then arguments."""


@dataclass(frozen=True, slots=True)
class CpuFeatures:
    """Instruction sets that the processor has and the operating system lets us use.

    The fields are in the order of the bits in the library's mask.
    """

    avx2: bool
    fma: bool
    f16c: bool
    avx512f: bool
    avx512bw: bool
    avx512dq: bool
    avx512vl: bool
    avx512_vnni: bool
    avx512_bf16: bool
    avx512_fp16: bool
    amx_tile: bool
    amx_int8: bool
    amx_bf16: bool
    avx_vnni: bool

    def __str__(self) -> str:
        names = [field.name for field in fields(self) if getattr(self, field.name)]
        return " ".join(names) or "none"


def cpu_features() -> CpuFeatures | None:
    """What the library found; None without the library."""
    library = load_library()
    if library is None:
        return None
    mask = library.refectory_cpu_features()
    return CpuFeatures(*(bool(mask >> bit & 1) for bit in range(len(fields(CpuFeatures)))))


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL | None:
    """The library with its functions' types declared; None where it was not built."""
    path = _find_library()
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name, None)  # on other processors than x86-64: the first only
        if function is not None:
            function.restype, function.argtypes = result, arguments
    return library


def last_error(library: ctypes.CDLL) -> Exception:
    """What the last call that failed in this thread says of itself."""
    words = library.refectory_last_error().decode()
    return MemoryError(words) if words == "out of memory" else RuntimeError(words)


def _find_library() -> Path | None:
    """In an editable install it lies apart from the sources; both are on the package's path."""
    resource = files("refectory_kernels").joinpath(LIBRARY_NAME)
    return resource if isinstance(resource, Path) and resource.is_file() else None
