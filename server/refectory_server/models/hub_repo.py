"""`HubRepo`: one model's files on a hub, listed and read over HTTP by huggingface_hub's client.

Owns what the hub's answers and failures mean. Obeys HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and the
proxy variables, as that library does. Knows no local files. Imported only where there is something
to download: the library takes its time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx2
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub import errors as hub_errors
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    hf_raise_for_status,
)

from refectory_server.errors import ServerError, StartupError
from refectory_server.models.hub_id import HubId
from refectory_server.version import __version__

# The library would tell the hub about this machine, and ask it about programs it does not know.
constants.HF_HUB_DISABLE_TELEMETRY = True

_TIMEOUT = httpx2.Timeout(connect=10.0, read=30.0, write=30.0, pool=30.0)
_TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


class TransientHubError(ServerError):
    """It may work in a moment. `retry_after_s` is the hub's wish."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RangeRefused(ServerError):
    """The hub's file is shorter than where reading should go on."""


@dataclass(frozen=True, slots=True)
class Digest:
    """`algorithm` is sha256, or git-sha1: of a small file as git names it."""

    algorithm: str
    value: str


@dataclass(frozen=True, slots=True)
class RemoteFile:
    name: str
    num_bytes: int
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class RepoListing:
    commit: str
    files: dict[str, RemoteFile]
    """Of the topmost folder, by name."""


class HubRepo:
    """Raises `StartupError` for what will not change, `TransientHubError` for what may."""

    def __init__(self, hub_id: HubId) -> None:
        self.hub_id = hub_id
        self._headers = build_hf_headers(library_name="refectory", library_version=__version__)
        # Sizes and ranges are those of the files, not of a compression of them.
        self._headers["Accept-Encoding"] = "identity"

    @cached_property
    def listing(self) -> RepoListing:
        """The files of the revision, asked for once."""
        with self._translated():
            info = huggingface_hub.HfApi().model_info(
                self.hub_id.repo,
                revision=self.hub_id.revision,
                files_metadata=True,
                timeout=30.0,
            )
        files = [_remote_file(entry) for entry in info.siblings or ()]
        if info.sha is None:
            raise TransientHubError(f"{constants.ENDPOINT} names no commit of model {self.hub_id}")
        return RepoListing(info.sha, {file.name: file for file in files if file is not None})

    @contextlib.contextmanager
    def stream(
        self, name: str, offset: int = 0, length: int | None = None
    ) -> Iterator[Iterator[bytes]]:
        """The bytes of a file of the listing from `offset` on, in pieces.

        Raises `RangeRefused` where there are none.
        """
        url = huggingface_hub.hf_hub_url(self.hub_id.repo, name, revision=self.listing.commit)
        end = "" if length is None else str(offset + length - 1)
        headers = dict(self._headers)
        if offset or length is not None:
            headers["Range"] = f"bytes={offset}-{end}"
        session = huggingface_hub.get_session()
        with (
            self._translated(),
            session.stream(
                "GET", url, headers=headers, follow_redirects=True, timeout=_TIMEOUT
            ) as response,
        ):
            if response.status_code == 416:
                raise RangeRefused(f"{name} has no byte {offset}")
            hf_raise_for_status(response)
            # In the network's own pieces: of larger ones, a cut would lose what has come.
            pieces: Iterator[bytes] = response.iter_bytes()
            # A server that knows no ranges begins at the beginning.
            num_skipped = offset if response.status_code == 200 else 0
            yield _without_first(pieces, num_skipped)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """A part of a file, or all of it: for small ones."""
        data = bytearray()
        with self.stream(name, offset, length) as pieces:
            for piece in pieces:
                data += piece
                if length is not None and len(data) >= length:
                    break
        return bytes(data if length is None else data[:length])

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turns the library's exceptions into ours, in one line each."""
        try:
            yield
        except hub_errors.OfflineModeIsEnabled as error:
            raise StartupError(
                f"model {self.hub_id} is not here and HF_HUB_OFFLINE forbids to download it",
                reason="HubUnreachable",
            ) from error
        except hub_errors.HfHubHTTPError as error:
            raise self._refusal(error) from error
        except httpx2.TransportError as error:
            detail = str(error) or type(error).__name__
            is_unreachable = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            problem = "cannot reach" if is_unreachable else "lost the connection to"
            raise TransientHubError(f"{problem} {constants.ENDPOINT}: {detail}") from error

    def _refusal(self, error: hub_errors.HfHubHTTPError) -> ServerError:
        status, headers = error.response.status_code, error.response.headers
        model, hub = self.hub_id, constants.ENDPOINT
        if status in _TRANSIENT_STATUSES:
            wish = headers.get("Retry-After", "")
            return TransientHubError(
                f"{hub} answered {status}",
                retry_after_s=float(wish) if wish.isdigit() else 0,
            )
        if isinstance(error, hub_errors.RevisionNotFoundError):
            return _missing(f"model {model.repo} has no revision {model.revision} on {hub}")
        if isinstance(error, hub_errors.GatedRepoError):
            return StartupError(
                f"model {model} is gated: accept its terms at {hub}/{model.repo} and set "
                f"HF_TOKEN to a token of that account ({status})",
                reason="HubForbidden",
            )
        if status == 401:
            advice = (
                "the token in HF_TOKEN is not accepted"
                if os.environ.get("HF_TOKEN")
                else "if it is private, set HF_TOKEN"
            )
            return StartupError(
                f"model {model} does not exist on {hub} or is private: check the name; "
                f"{advice} (401)",
                reason="HubUnauthorized",
            )
        if status == 403:
            return StartupError(
                f"model {model} may not be read from {hub} with this token (403)",
                reason="HubForbidden",
            )
        if status == 404:
            return _missing(f"model {model} does not exist on {hub} (404)")
        return StartupError(f"{hub} answered {status} for model {model}", reason="HubError")


def _remote_file(entry: Any) -> RemoteFile | None:
    """None for a file in a folder: models have what is needed at the top."""
    if "/" in entry.rfilename or entry.size is None:
        return None
    digest = None
    if entry.lfs is not None:
        digest = Digest("sha256", entry.lfs.sha256)
    elif entry.blob_id is not None:
        digest = Digest("git-sha1", entry.blob_id)
    return RemoteFile(entry.rfilename, entry.size, digest)


def _without_first(pieces: Iterator[bytes], num_bytes: int) -> Iterator[bytes]:
    for piece in pieces:
        if num_bytes >= len(piece):
            num_bytes -= len(piece)
            continue
        yield piece[num_bytes:]
        num_bytes = 0


def _missing(message: str) -> StartupError:
    return StartupError(message, reason="ModelMissing")
