"""`RequestRecord`: one request as its client saw it. Times are seconds of one monotonic clock."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestRecord:
    sent_at: float
    ended_at: float = 0.0
    """When the stream was closed."""
    text_times: list[float] = field(default_factory=list)
    """When each piece of text came: for most servers one a token."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    """Both as the server counted them; without its word the output's are the pieces."""
    error: str | None = None

    @property
    def e2e_s(self) -> float:
        return self.ended_at - self.sent_at

    @property
    def ttft_s(self) -> float | None:
        return self.text_times[0] - self.sent_at if self.text_times else None

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds a token after the first; None below two tokens."""
        if not self.text_times or self.num_output_tokens < 2:
            return None
        return (self.text_times[-1] - self.text_times[0]) / (self.num_output_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Between consecutive pieces of text."""
        return [later - earlier for earlier, later in itertools.pairwise(self.text_times)]
