"""The native library compiled with sanitizers, over odd shapes: nothing to complain of."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refectory_kernels.cpu_level import available_levels

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DRIVER = """
import random
import sys
from pathlib import Path

from refectory_kernels import native

native._find_library = lambda: Path(sys.argv[1])

from refectory_kernels.cpu_abi import Element
from refectory_kernels.cpu_level import available_levels
from refectory_server.testing.decoder_sequences import DecoderSequences
from refectory_server.testing.drawn_requests import draw_cases, run_together
from refectory_server.testing.random_decoder import draw_decoder
from refectory_server.testing.random_runner import load_random_runner
from refectory_server.testing.stepped_engine import SteppedEngine

for level in available_levels():
    for seed in range(6):
        rng = random.Random(seed)
        model = draw_decoder(
            rng,
            element=Element(seed % 2),
            output_norms=seed % 3 == 1,
            vocab_size=rng.choice([1, 131]),
            num_blocks=100,
        )
        lengths = [1, 17, 70, 530 if seed == 2 else 100]
        token_ids = [[rng.randrange(model.shape.vocab_size) for _ in range(n)] for n in lengths]
        sequences = DecoderSequences(model.load(level, 1 + seed % 3), token_ids)
        sequences.step({3: lengths[3] - 3, 0: 1, 1: 16})
        sequences.step({1: 1, 2: 69, 3: 1})
        sequences.move(3)
        sequences.step({3: 1})
        sequences.step({2: 1, 3: 1})
    runner = load_random_runner(draw_decoder(rng, vocab_size=131), level, num_threads=2)
    run_together(SteppedEngine(runner, chunk=100), draw_cases(rng, 8, vocab_size=131))
    print(level)
"""


@pytest.mark.parametrize(
    ("sanitizers", "runtime"), [("address,undefined", "libasan.so"), ("thread", "libtsan.so")]
)
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile with")
def test_odd_shapes_at_every_level(tmp_path: Path, sanitizers: str, runtime: str) -> None:
    run(
        *("cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", "-DCMAKE_CXX_COMPILER=g++"),
        f"-DREFECTORY_SANITIZE={sanitizers}",
    )
    run("cmake", "--build", tmp_path)

    levels = run(
        *(sys.executable, "-P", "-c", DRIVER, tmp_path / "kernels/cpu/librefectory_cpu.so"),
        # Python is not built for it: the runtime has to be there before anything else.
        LD_PRELOAD=run("g++", f"-print-file-name={runtime}").strip(),
        ASAN_OPTIONS="detect_leaks=0",  # Python's own, at its end
        OPENBLAS_NUM_THREADS="1",
    )

    assert levels.split() == [*available_levels()]


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
