"""The pages people read: the commands they are told to type, make's own, and the links.

A command in a fenced shell block must be one that a test or CI runs; PROVEN says where.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()

PROVEN = {
    ".venv/bin/refectory download HuggingFaceTB/SmolLM2-135M-Instruct --to models/smollm2": (
        "tests/server/test_deploying.py"
    ),
    ".venv/bin/refectory serve --check": "tests/server/test_deploying.py",
    ".venv/bin/refectory serve --simulate instant": "tests/server/test_simulate.py",
    "make check": ".ci/run",
    "make help": "tests/contract/test_pages.py",
    "make serve": "tests/server/test_readme.py",
    "make test": ".ci/run",
}
"""Command, its words joined by single blanks -> the file that runs it."""

FROM_OUTER_MAKE = {
    "ARGS", "ENGINES", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MODEL", "PEERS", "POINTS", "PORT",
    "PYTHON",
}  # fmt: skip


def run_make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run make as a person would, whatever make and variables this test run came from."""
    environment = {key: value for key, value in os.environ.items() if key not in FROM_OUTER_MAKE}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


def make(*arguments: str) -> str:
    done = run_make(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def documented_commands(text: str) -> list[str]:
    """The commands in the fenced sh, bash and console blocks of a Markdown text.

    Comments and a console's output are dropped; a command may span lines, by a backslash or
    inside quotes.
    """
    commands = []
    for language, block in re.findall(r"^```(sh|bash|shell|console)\n(.*?)^```", text, re.M | re.S):
        pending = ""
        for line in block.splitlines():
            if language == "console" and not pending:
                if not line.startswith("$ "):
                    continue
                line = line.removeprefix("$ ")
            pending += line + "\n"
            if line.endswith("\\"):
                continue
            try:
                words = shlex.split(pending.replace("\\\n", " "), comments=True)
            except ValueError:  # a quote is still open
                continue
            if words:
                commands.append(" ".join(" ".join(words).split()))
            pending = ""
        assert not pending, f"unfinished command: {pending!r}"
    return commands


def test_help_lists_every_target_with_a_sentence() -> None:
    targets = re.findall(r"^([a-z][a-z0-9-]*):", MAKEFILE, re.M)
    assert {"serve", "test", "check", "lock", "help"} <= set(targets)
    listed = dict(re.findall(r"^  make ([a-z0-9-]+) +(\S.*\.)$", make("help"), re.M))
    assert sorted(listed) == sorted(targets)
    assert make() == make("help")


def test_every_target_is_phony() -> None:
    """A file called `test` must not make `make test` do nothing."""
    targets = re.findall(r"^([a-z][a-z0-9-]*):", MAKEFILE, re.M)
    assert re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M) == targets


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("serve",), "exec .venv/bin/refectory serve --port 8000"),
        (
            ("serve", "PORT=8123", "MODEL=some/folder", "ARGS=--dtype float32 --max-num-seqs 4"),
            "exec .venv/bin/refectory serve some/folder --port 8123"
            " --dtype float32 --max-num-seqs 4",
        ),
        (
            ("bench", "PEERS=../peers", "POINTS=8x128/128 1x8/8", "ENGINES=vllm"),
            "PYTHONPATH=server/benchmarks .venv/bin/python -P -m side_by_side"
            ' --peers "../peers" --points "8x128/128 1x8/8" --engines "vllm"',
        ),
        (("test",), 'PYTHONSAFEPATH=1 .venv/bin/pytest -m "not cluster"'),
    ],
)
def test_an_installed_target_runs_one_command(arguments: tuple[str, ...], command: str) -> None:
    """Dry run with both stamps declared up to date: nothing is installed a second time."""
    stamps = ("-o", ".venv/.installed-server", "-o", ".venv/.installed-dev")
    lines = make("--dry-run", *stamps, *arguments).splitlines()
    assert [" ".join(line.split()) for line in lines] == [command]


@pytest.mark.parametrize("cause", ["missing", "too old"])
def test_an_unfit_interpreter_is_refused_with_the_way_out(tmp_path: Path, cause: str) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    for name in ("pyproject.toml", "constraints.txt", "CMakeLists.txt"):
        (tmp_path / name).touch()
    old = tmp_path / "python3.9"
    if cause == "too old":
        old.write_text('#!/bin/sh\ncase "$2" in *exit*) exit 1;; esac\necho 3.9.2\n')
        old.chmod(0o755)
    done = run_make("serve", f"PYTHON={old}", folder=tmp_path)
    assert done.returncode == 2
    message = done.stderr.splitlines()[0]
    if cause == "too old":
        assert message == (
            f"refectory: Python 3.11 or newer is needed, '{old}' is 3.9.2. "
            "Name another: make serve PYTHON=python3.11"
        )
    else:
        assert message == (
            f"refectory: no '{old}' here. Install Python 3.11 or newer, or name one: "
            "make serve PYTHON=/path/to/python3.11"
        )
    assert not (tmp_path / ".venv").exists()


def test_shell_blocks_are_read_as_a_shell_reads_them() -> None:
    text = """
```sh
make serve   # the embedded model
curl -d '{
  "a": 1}' \\
  http://host
```
```console
$ make help
Use
```
```python
make nothing
```
"""
    assert documented_commands(text) == ["make serve", 'curl -d { "a": 1} http://host', "make help"]


def test_documented_commands_are_run_by_a_test_or_ci() -> None:
    documented = {
        command: page.name for page in pages() for command in documented_commands(page.read_text())
    }
    unproven = {
        command: page
        for command, page in documented.items()
        # The README's requests are run as they stand there, every one of them.
        if command not in PROVEN and not (page == "README.md" and command.startswith("curl "))
    }
    assert unproven == {}
    assert [path for path in PROVEN.values() if not (ROOT / path).is_file()] == []
    assert [command for command in PROVEN if command not in documented] == []


def test_documented_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", MAKEFILE, re.M))
    named = {
        name
        for page in pages()
        for name in re.findall(r"`make ([a-z][a-z0-9-]*)", page.read_text())
    }
    assert named <= targets


def test_links_between_pages_and_files_resolve() -> None:
    broken = [
        f"{page.name}: {target}"
        for page in pages()
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
