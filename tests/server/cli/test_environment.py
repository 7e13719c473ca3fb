"""REFECTORY_... variables that mean nothing: told by name, but for those of Kubernetes."""

from __future__ import annotations

import logging

import pytest
from click.testing import CliRunner

from refectory_server.cli.environment import log_unknown_variables
from refectory_server.cli.main import main
from refectory_server.cli.serve import serve

SERVICE_LINKS = {
    "REFECTORY_SERVICE_HOST": "10.0.0.1",
    "REFECTORY_SERVICE_PORT": "80",
    "REFECTORY_SERVICE_PORT_HTTP": "80",
    "REFECTORY_CHAT_PORT": "tcp://10.0.0.1:80",
    "REFECTORY_PORT_80_TCP": "tcp://10.0.0.1:80",
    "REFECTORY_PORT_80_TCP_PROTO": "tcp",
    "REFECTORY_PORT_80_TCP_PORT": "80",
    "REFECTORY_CHAT_PORT_80_TCP_ADDR": "10.0.0.1",
}


def warnings(caplog: pytest.LogCaptureFixture, **environ: str) -> list[str]:
    log_unknown_variables(serve.params, environ)
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.message for record in caplog.records]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("REFECTORY_BOGUS", ""),
        ("REFECTORY_MAX_NUM_SEQ", "; did you mean REFECTORY_MAX_NUM_SEQS, for --max-num-seqs?"),
        ("REFECTORY_CPU_LEVELS", "; did you mean REFECTORY_CPU_LEVEL?"),
        ("REFECTORY_HTTP_PORT", "; did you mean REFECTORY_PORT, for --port?"),
    ],
)
def test_one_that_means_nothing_is_told_without_its_value(
    caplog: pytest.LogCaptureFixture, name: str, hint: str
) -> None:
    assert warnings(caplog, **{name: "secret"}) == [
        f"the environment variable {name} has no effect{hint}"
    ]


def test_those_that_mean_something_and_those_of_others_are_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = ["REFECTORY_MAX_NUM_SEQS", "REFECTORY_CONFIG", "REFECTORY_CPU_LEVEL", "PATH"]
    assert warnings(caplog, **SERVICE_LINKS, **dict.fromkeys(names, "1")) == []


def test_the_start_tells() -> None:
    arguments = ["serve", "--check", "--simulate=instant"]
    result = CliRunner().invoke(main, arguments, env={"REFECTORY_BOGUS": "1"})
    assert result.exit_code == 0
    assert "WARNING" in result.output
    assert "the environment variable REFECTORY_BOGUS has no effect" in result.output
