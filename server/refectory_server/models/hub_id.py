"""`HubId`: a model on a model hub, as a person names it. Knows no network and no files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from refectory_server.errors import StartupError

HUB_SCHEME = "hf://"
DEFAULT_REVISION = "main"
_REPO = r"[A-Za-z0-9][\w.-]*/[\w.-]+"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubId:
    repo: str
    """org/name"""
    revision: str = DEFAULT_REVISION
    """A branch, a tag, or a commit."""

    @property
    def is_pinned(self) -> bool:
        """The revision is a whole commit id, which never means anything else."""
        return _COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return self.repo if self.revision == DEFAULT_REVISION else f"{self.repo}@{self.revision}"


def parse_hub_id(model: str, revision: str | None) -> HubId | None:
    """What `org/name` or `hf://org/name[@revision]` means; None for anything else.

    `revision` is the flag's value. Raises `StartupError` for a malformed `hf://` name, and for two
    revisions.
    """
    has_scheme = model.startswith(HUB_SCHEME)
    repo, has_revision, written = model.removeprefix(HUB_SCHEME).partition("@")
    if not re.fullmatch(_REPO, repo) or (has_revision and not has_scheme):
        if has_scheme:
            raise StartupError(
                f"model {model} is malformed; allowed is hf://org/name or hf://org/name@revision",
                reason="ModelMissing",
            )
        return None
    if not has_revision:
        return HubId(repo, revision or DEFAULT_REVISION)
    if not written or (revision is not None and revision != written):
        raise StartupError(
            f"model {model} names the revision {written!r}, --revision {revision!r}; give one",
            reason="ModelMissing",
        )
    return HubId(repo, written)
