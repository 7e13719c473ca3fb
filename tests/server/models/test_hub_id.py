"""Hub ids: what is one, what is a local path, and which revision is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from refectory_server.errors import StartupError
from refectory_server.models.hub_id import HubId
from refectory_server.models.source import hub_id_of

COMMIT = "0e9e39f249a16976918f6564b8830bc894c89659"


@pytest.mark.parametrize(
    ("model", "revision", "expected"),
    [
        ("org/name", None, HubId("org/name", "main")),
        ("org/name", "v1", HubId("org/name", "v1")),
        ("hf://org/name", None, HubId("org/name", "main")),
        ("hf://org/name@v1", None, HubId("org/name", "v1")),
        ("hf://org/name@v1", "v1", HubId("org/name", "v1")),
        ("HuggingFaceTB/SmolLM2-135M_x.y", None, HubId("HuggingFaceTB/SmolLM2-135M_x.y", "main")),
        ("name", None, None),
        ("a/b/c", None, None),
        ("/org/name", None, None),
        ("./org", None, None),
        ("../name", None, None),
        ("~/name", None, None),
        ("org/name@v1", None, None),
        ("org/tiny.gguf", None, None),
        ("embedded://smollm2-135m", None, None),
        ("s3://bucket/name", None, None),
    ],
)
def test_names(model: str, revision: str | None, expected: HubId | None) -> None:
    assert hub_id_of(model, revision) == expected


@pytest.mark.parametrize(
    ("model", "revision"),
    [
        ("hf://name", None),
        ("hf://a/b/c", None),
        ("hf://org/name@", None),
        ("hf://org/name@v1", "v2"),
        ("hf://../name", None),
    ],
)
def test_malformed_names(model: str, revision: str | None) -> None:
    with pytest.raises(StartupError) as caught:
        hub_id_of(model, revision)
    assert model in str(caught.value)


def test_a_folder_of_that_name_comes_first_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    assert hub_id_of("org/name", None) == HubId("org/name")
    (tmp_path / "org" / "name").mkdir()
    assert hub_id_of("org/name", None) is None
    assert hub_id_of("hf://org/name", None) == HubId("org/name")


@pytest.mark.parametrize(
    ("revision", "is_pinned"), [(COMMIT, True), (COMMIT[:39], False), ("main", False)]
)
def test_only_a_whole_commit_is_pinned(revision: str, is_pinned: bool) -> None:
    assert HubId("org/name", revision).is_pinned is is_pinned


@pytest.mark.parametrize("model", ["~no-such-user-here/model", "x" * 5000 + "/model"])
def test_a_name_that_cannot_be_looked_up_is_told(model: str) -> None:
    with pytest.raises(StartupError, match="cannot be looked up"):
        hub_id_of(model, None)
