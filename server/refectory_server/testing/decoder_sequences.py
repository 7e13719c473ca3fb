"""`DecoderSequences`: sequences of given tokens through a `CpuDecoder`, stepped by hand.

Owns what a scheduler would know: which tokens, how many are computed, which blocks. Blocks are
handed out in a shuffled order.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from refectory_kernels.cpu_decoder import CpuDecoder, Step

Logits = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


class DecoderSequences:
    """Each sequence is known by its place in `token_ids`."""

    def __init__(
        self,
        decoder: CpuDecoder,
        token_ids: Sequence[Sequence[int]],
        *,
        nan_token: int | None = None,
        seed: int = 0,
    ) -> None:
        """nan_token: one whose embedding is NaN; then blocks hold NaN where nothing is stored.

        seed: of the blocks' order
        """
        self.decoder = decoder
        self.token_ids = [list(ids) for ids in token_ids]
        self.num_computed = [0] * len(token_ids)
        self.block_ids: list[list[int]] = [[] for _ in token_ids]
        self._free_ids = list(range(decoder.shape.num_blocks))
        random.Random(seed).shuffle(self._free_ids)
        if nan_token is not None:
            self._fill_blocks(nan_token)

    def step(
        self, counts: Mapping[int, int], sampled: Sequence[int] | None = None
    ) -> dict[int, Logits]:
        """Compute so many more tokens of these sequences, in this order.

        sampled: those of them whose logits are wanted; None: all
        Returns each one's logits after the last of its tokens, [vocab_size].
        """
        sampled = list(counts) if sampled is None else sampled
        token_ids: list[int] = []
        starts = [0]
        for sequence, count in counts.items():
            first = self.num_computed[sequence]
            self.num_computed[sequence] += count
            token_ids += self.token_ids[sequence][first : first + count]
            starts.append(len(token_ids))
            self._grow(sequence)
        tables = [self.block_ids[sequence] for sequence in counts]
        # What lies behind a table's end must not be read: no block has the largest id.
        block_tables = np.full((len(tables), max(map(len, tables))), 2**31 - 1, np.int32)
        for row, table in zip(block_tables, tables, strict=True):
            row[: len(table)] = table
        logits = self.decoder.logits(
            Step(
                token_ids=np.array(token_ids, np.int32),
                query_starts=np.array(starts, np.int32),
                context_lens=np.array([self.num_computed[i] for i in counts], np.int32),
                block_tables=block_tables,
                sampled=np.array([list(counts).index(i) for i in sampled], np.int32),
            )
        )
        return dict(zip(sampled, logits, strict=True))

    def all_logits(self, sequence: int) -> Logits:
        """The sequence token by token, alone: logits after each, [num_tokens, vocab_size]."""
        return np.array([self.step({sequence: 1})[sequence] for _ in self.token_ids[sequence]])

    def move(self, sequence: int) -> None:
        """Copy all of its blocks to others, and leave the old ones to whoever comes."""
        old = self.block_ids[sequence]
        self.block_ids[sequence] = [self._free_ids.pop() for _ in old]
        self.decoder.copy_blocks(np.array(old, np.int32), self._ints(sequence))
        self._free_ids += old

    def restart(self, sequence: int) -> None:
        """Take its blocks away, as a preemption does."""
        self._free_ids = self.block_ids[sequence] + self._free_ids
        self.block_ids[sequence] = []
        self.num_computed[sequence] = 0

    def _ints(self, sequence: int) -> Ints:
        return np.array(self.block_ids[sequence], np.int32)

    def _grow(self, sequence: int) -> None:
        num_blocks = -(-self.num_computed[sequence] // self.decoder.shape.block_size)
        num_missing = num_blocks - len(self.block_ids[sequence])
        self.block_ids[sequence] += [self._free_ids.pop() for _ in range(num_missing)]

    def _fill_blocks(self, token_id: int) -> None:
        shape = self.decoder.shape
        self.decoder.logits(
            Step(
                token_ids=np.full(shape.block_size, token_id, np.int32),
                query_starts=np.array([0, shape.block_size], np.int32),
                context_lens=np.array([shape.block_size], np.int32),
                block_tables=np.zeros((1, 1), np.int32),
                sampled=np.empty(0, np.int32),
            )
        )
        others = np.arange(1, shape.num_blocks, dtype=np.int32)
        self.decoder.copy_blocks(np.zeros_like(others), others)
