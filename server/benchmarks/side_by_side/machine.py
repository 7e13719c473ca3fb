"""`Machine`: what a figure was measured on, as Linux tells it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

FEATURES = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_bf16", "amx_int8", "amx_fp16",
)  # fmt: skip
"""Of /proc/cpuinfo's flags, those that decide how fast arithmetic is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    cpu: str
    features: list[str]
    num_cores: int
    memory_gib: float
    kernel: str
    python: str


def this_machine() -> Machine:
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpu, features = parse_cpuinfo(Path("/proc/cpuinfo").read_text())
    return Machine(
        cpu=cpu,
        features=features,
        num_cores=len(os.sched_getaffinity(0)),
        memory_gib=round(total_bytes / 2**30, 1),
        kernel=platform.release(),
        python=platform.python_version(),
    )


def parse_cpuinfo(text: str) -> tuple[str, list[str]]:
    """The first processor's name with its family, model and stepping, and its features."""
    lines = text.split("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    name = (
        f"{fields['model name']} (family {fields['cpu family']}, model {fields['model']}, "
        f"stepping {fields['stepping']})"
    )
    flags = fields["flags"].split()
    return name, [feature for feature in FEATURES if feature in flags]
