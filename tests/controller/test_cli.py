"""`refectory-operator` without a controller: a pod that runs it must not count as a success."""

from __future__ import annotations

import pytest

from refectory_operator.cli import main


def test_without_an_option_it_fails_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "This version has no controller yet" in output.err
