"""A hub's model without its weights: the small files, and the weights' headers by range requests.

A few megabytes of a model of any size: enough to say whether it could be served.
"""

from __future__ import annotations

from pathlib import Path

from refectory_server.models.hub_files import text_files, weight_files
from refectory_server.models.hub_repo import HubRepo
from refectory_server.models.retries import Retries
from refectory_server.models.safetensors_files import TensorHeader, parse_safetensors_header


class HubHeaders:
    """Raises `StartupError` for whatever is wrong with the model or the way to it."""

    def __init__(self, repo: HubRepo, retries: Retries) -> None:
        self._repo = repo
        self._retries = retries

    def fetch_texts(self, folder: Path) -> None:
        """Config, tokenizer and template into `folder`."""
        listing = self._retries.run(lambda: self._repo.listing)
        for name in text_files(listing.files, str(self._repo.hub_id)):
            (folder / name).write_bytes(self._read(name, 0, None))

    def read(self) -> dict[str, TensorHeader]:
        """Of every tensor, by name."""
        files = self._retries.run(lambda: self._repo.listing).files
        headers: dict[str, TensorHeader] = {}
        names = weight_files(files, lambda name: self._read(name, 0, None), str(self._repo.hub_id))
        for name in names:
            if name.endswith(".safetensors"):
                headers |= self._header_of(name, files[name].num_bytes)
        return headers

    def _header_of(self, name: str, num_bytes: int) -> dict[str, TensorHeader]:
        def read(offset: int, length: int) -> bytes:
            return self._read(name, offset, length)

        return parse_safetensors_header(read, num_bytes, f"{name} of model {self._repo.hub_id}")

    def _read(self, name: str, offset: int, length: int | None) -> bytes:
        return self._retries.run(lambda: self._repo.read(name, offset, length))
