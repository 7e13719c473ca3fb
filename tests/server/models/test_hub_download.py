"""Downloading from a small hub through huggingface_hub: what is taken, and everything that fails.

The library reads HF_ENDPOINT once, so one hub serves all tests of this module.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from refectory_server.errors import StartupError
from refectory_server.models.download_marker import MARKER_NAME, read_marker
from refectory_server.models.folder_lock import folder_lock
from refectory_server.models.hub_id import HubId
from refectory_server.models.retries import Retries
from refectory_server.testing.hub_server import HubFaults, HubFile, HubModel, HubServer, hub_server

MIB = 1 << 20
WEIGHTS = random.Random(0).randbytes(3 * MIB)
RETRIES = Retries(max_retries=3, max_pause_s=0.01)
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": "größe {{ messages }}".encode(),
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"a pickle",
    "modeling_custom.py": b"import os",
    "README.md": b"# A model",
    "original/consolidated.safetensors": b"weights again",
}
NEEDED = sorted(list(FILES)[:6])
NUM_NEEDED_BYTES = sum(len(FILES[name]) for name in NEEDED)


@pytest.fixture(scope="module")
def running_hub() -> Iterator[HubServer]:
    with hub_server() as hub:
        yield hub


def use_endpoint(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(running_hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    use_endpoint(monkeypatch, running_hub.url)
    for name in ("HF_TOKEN", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    running_hub.models.clear()
    running_hub.requests.clear()
    running_hub.num_content_bytes = 0
    running_hub.faults = HubFaults()
    return running_hub


@pytest.fixture
def model(hub: HubServer) -> HubModel:
    return hub.add("org/name", FILES)


def download(folder: Path, revision: str = "main", name: str = "org/name") -> bool:
    """Whether there was anything to do."""
    from refectory_server.models.hub_download import HubDownload
    from refectory_server.models.hub_repo import HubRepo

    _, was_needed = HubDownload(HubRepo(HubId(name, revision)), folder, retries=RETRIES).run()
    return was_needed


def error_of(folder: Path, revision: str = "main") -> StartupError:
    with pytest.raises(StartupError) as caught:
        download(folder, revision)
    assert "\n" not in str(caught.value)
    assert not (folder / MARKER_NAME).exists()
    return caught.value


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def check_complete(folder: Path) -> None:
    assert visible(folder) == NEEDED
    assert all((folder / name).read_bytes() == FILES[name] for name in NEEDED)


def test_only_the_files_needed_are_taken_and_the_marker_tells_them(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    assert download(tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    check_complete(folder)
    marker = json.loads((folder / MARKER_NAME).read_text())
    assert marker["model"] == "org/name"
    assert (marker["revision"], marker["commit"]) == ("main", model.commit)
    assert marker["files"]["model.safetensors"] == {
        "num_bytes": len(WEIGHTS),
        "digest": f"sha256:{hashlib.sha256(WEIGHTS).hexdigest()}",
    }
    assert marker["files"]["config.json"]["digest"].startswith("git-sha1:")
    assert sorted(marker["files"]) == NEEDED
    assert not (folder / ".refectory-download").exists()
    assert hub.num_content_bytes == NUM_NEEDED_BYTES


def test_a_second_call_asks_the_hub_nothing(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    assert download(tmp_path)
    hub.requests.clear()
    assert not download(tmp_path)
    assert not download(tmp_path, revision=model.commit)
    assert hub.requests == []
    # Another name: the hub is asked whether it is the same commit.
    assert not download(tmp_path, revision="v1")
    assert hub.content_requests() == []


def test_a_folder_of_another_model_or_revision_is_left_alone(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    hub.add("org/other", FILES)
    assert download(tmp_path)
    with pytest.raises(StartupError, match=r"holds org/name@main, not org/other; give") as caught:
        download(tmp_path, name="org/other")
    assert caught.value.reason == "FolderInUse"
    check_complete(tmp_path)


def test_a_lost_file_is_downloaded_again_and_nothing_else(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    assert download(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    hub.num_content_bytes = 0
    assert download(tmp_path)
    check_complete(tmp_path)
    assert hub.num_content_bytes == len(FILES["tokenizer.json"])


def test_shards_are_those_of_the_index(hub: HubServer, tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    files = {
        "config.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model-1.safetensors": b"one",
        "model-2.safetensors": b"two",
        "model.safetensors": b"all again",
        "consolidated.safetensors": b"and again",
    }
    hub.add("org/name", files)
    download(tmp_path)
    assert visible(tmp_path) == sorted([*list(files)[:4]])


def test_a_connection_cut_short_goes_on_where_it_stopped(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    hub.faults = HubFaults(cut_after_bytes=MIB, num_cuts=2)
    assert download(tmp_path)
    check_complete(tmp_path)
    ranges = [request.partition("bytes=")[2] for request in hub.content_requests()]
    assert ranges == ["", f"{MIB}-", f"{2 * MIB}-"]
    assert hub.num_content_bytes == NUM_NEEDED_BYTES


def test_cuts_with_progress_between_them_never_count_as_failures_in_a_row(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    hub.faults = HubFaults(cut_after_bytes=MIB // 4, num_cuts=11)
    assert download(tmp_path)
    check_complete(tmp_path)


def test_a_call_that_failed_is_continued_by_the_next(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    hub.faults = HubFaults(cut_after_bytes=2 * MIB, num_cuts=1)
    threading.Thread(target=lambda: _fail_after_the_cut(hub)).start()
    error = error_of(tmp_path)
    assert error.reason == "HubUnreachable"
    assert str(error).endswith("answered 503; given up after 4 tries")
    hub.faults = HubFaults()
    hub.requests.clear()
    assert download(tmp_path)
    check_complete(tmp_path)
    assert [r.partition("bytes=")[2] for r in hub.content_requests()] == [f"{2 * MIB}-"]


def _fail_after_the_cut(hub: HubServer) -> None:
    faults = hub.faults
    while faults.num_cuts:
        threading.Event().wait(0.001)
    faults.num_failing_requests = 100


def test_a_hub_without_ranges_costs_bandwidth_only(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    hub.faults = HubFaults(cut_after_bytes=MIB, num_cuts=1, ignores_ranges=True)
    assert download(tmp_path)
    check_complete(tmp_path)
    assert hub.num_content_bytes == NUM_NEEDED_BYTES + MIB


def test_a_few_failures_are_ridden_out(
    hub: HubServer, model: HubModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub.faults = HubFaults(num_failing_requests=3)
    assert download(tmp_path)
    check_complete(tmp_path)
    said = [r.message for r in caplog.records if r.name == "refectory_server.models.retries"]
    assert len(said) == 3
    assert said[0].startswith(f"{hub.url} answered 503; trying again in ")


def test_no_network(tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    use_endpoint(monkeypatch, "http://127.0.0.1:9")
    error = error_of(tmp_path)
    assert error.reason == "HubUnreachable"
    assert str(error).startswith("cannot reach http://127.0.0.1:9: ")


@pytest.mark.parametrize("is_lfs", [True, False])
def test_content_that_is_not_that_of_its_digest(
    hub: HubServer, model: HubModel, tmp_path: Path, is_lfs: bool
) -> None:
    file = model.files["model.safetensors" if is_lfs else "chat_template.jinja"]
    file.sent_content = bytes(len(file.content))
    error = error_of(tmp_path)
    assert error.reason == "DownloadDamaged"
    assert "arrived damaged" in str(error)
    # Nothing of it stays: the next call begins anew.
    file.sent_content = None
    assert download(tmp_path)
    check_complete(tmp_path)


def test_a_part_that_went_bad_on_the_disk_is_thrown_away(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    work = tmp_path / ".refectory-download"
    work.mkdir()
    sha256 = model.files["model.safetensors"].sha256
    (work / f"model.safetensors.{sha256[:16]}.part").write_bytes(bytes(1000))
    assert download(tmp_path)
    check_complete(tmp_path)


@pytest.mark.parametrize(
    ("change", "token", "reason", "said"),
    [
        ({"token": "t"}, None, "HubUnauthorized", "if it is private, set HF_TOKEN (401)"),
        ({"token": "t"}, "wrong", "ModelMissing", "does not exist on"),
        ({"gated_to": "t"}, "wrong", "HubForbidden", "is gated: accept its terms at"),
        ({"gated_to": "t"}, None, "HubForbidden", "(403)"),
    ],
)
def test_refusals(
    hub: HubServer,
    model: HubModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    token: str | None,
    reason: str,
    said: str,
) -> None:
    for key, value in change.items():
        setattr(model, key, value)
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    error = error_of(tmp_path)
    assert error.reason == reason
    assert said in str(error)
    assert token is None or token not in str(error)
    monkeypatch.setenv("HF_TOKEN", "t")
    assert download(tmp_path)
    assert not hub.was_token_leaked


def test_names_that_do_not_exist(hub: HubServer, model: HubModel, tmp_path: Path) -> None:
    error = error_of(tmp_path, revision="v9")
    assert (error.reason, str(error)) == (
        "ModelMissing",
        f"model org/name has no revision v9 on {hub.url}",
    )
    hub.models.clear()
    assert error_of(tmp_path).reason == "HubUnauthorized"


def index_naming(file_name: str) -> dict[str, bytes]:
    index = json.dumps({"weight_map": {"a": file_name}}).encode()
    return {"config.json": b"{}", "model.safetensors.index.json": index}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"model.safetensors": b""}, "has no config.json"),
        ({"config.json": b"{}"}, "has neither model.safetensors nor model.safetensors.index.json"),
        ({"config.json": b"{}", "pytorch_model.bin": b""}, "as pytorch_model.bin: pickled files"),
        (
            {
                "config.json": b"{}",
                "model.safetensors.index.json": b'{"weight_map": {"a": "../b"}}',
            },
            "names ../b, a file outside its folder",
        ),
        (
            {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"a": "b"}}'},
            "names b, which is not there",
        ),
    ],
)
def test_models_without_usable_weights(
    hub: HubServer, tmp_path: Path, files: dict[str, bytes], said: str
) -> None:
    hub.add("org/name", files)
    error = error_of(tmp_path)
    assert error.reason == "ModelInvalid"
    assert said in str(error)
    assert hub.content_requests() == []


def test_a_disk_too_small_is_noticed_before_anything_is_downloaded(
    hub: HubServer, model: HubModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    error = error_of(tmp_path)
    assert (error.reason, str(error)) == (
        "DiskFull",
        f"the disk of {tmp_path} is full: {NUM_NEEDED_BYTES} bytes to come, 1000 free",
    )
    assert hub.content_requests() == []


def test_a_folder_that_cannot_be_made(hub: HubServer, model: HubModel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="cannot write to") as caught:
        download(tmp_path / "file" / "folder")
    assert caught.value.reason == "CannotWrite"


def test_two_at_once_are_one_after_the_other(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    results: list[bool] = []
    with folder_lock(tmp_path):
        threads = [
            threading.Thread(target=lambda: results.append(download(tmp_path))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, True]
    assert hub.num_content_bytes == NUM_NEEDED_BYTES


def fetch(folder: Path, revision: str = "main") -> Path:
    from refectory_server.models.hub import fetch_model

    return fetch_model(
        HubId("org/name", revision), str(folder), lambda num, total: None, retries=RETRIES
    )


def test_models_of_a_server_lie_by_name_and_commit(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    folder = fetch(tmp_path)
    assert folder == tmp_path / "org--name" / model.commit
    check_complete(folder)
    assert fetch(tmp_path, "v1") == folder
    old_commit = model.commit
    model.files["config.json"] = HubFile(b'{"new": true}', is_lfs=False)
    assert fetch(tmp_path) == tmp_path / "org--name" / model.commit != folder
    # Pinned: the hub need not be asked.
    hub.requests.clear()
    assert fetch(tmp_path, old_commit) == folder
    assert hub.requests == []


def test_without_a_network_an_earlier_download_serves(
    hub: HubServer, model: HubModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = fetch(tmp_path)
    hub.faults = HubFaults(num_failing_requests=1000)
    assert fetch(tmp_path) == folder
    assert f"going on with {folder}" in caplog.text
    with pytest.raises(StartupError) as caught:
        fetch(tmp_path, "v1")
    assert caught.value.reason == "HubUnreachable"
    assert read_marker(folder) is not None


def test_progress_grows_to_the_whole(hub: HubServer, model: HubModel, tmp_path: Path) -> None:
    from refectory_server.models.hub import fetch_model

    seen: list[tuple[int, int]] = []
    fetch_model(HubId("org/name"), str(tmp_path), lambda num, total: seen.append((num, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (NUM_NEEDED_BYTES, NUM_NEEDED_BYTES)
    assert len(seen) > 6


def test_the_hub_of_these_tests_is_one_to_the_librarys_own_download(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    import huggingface_hub

    path = huggingface_hub.snapshot_download(
        "org/name",
        endpoint=hub.url,
        cache_dir=tmp_path,
        allow_patterns=NEEDED,
        tqdm_class=None,
    )
    check_complete(Path(path))
