"""paged_attention against dense attention, whatever the blocks' order and the company."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from refectory_kernels.attention_metadata import AttentionMetadata, build_attention_metadata
from refectory_kernels.reference import kv_cache_store, paged_attention

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Shape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int


SHAPES = [Shape(1, 1, 32, 8), Shape(9, 3, 64, 16), Shape(5, 5, 40, 16), Shape(7, 1, 96, 32)]

# (queries, context): decodes, whole prefills, later chunks, block borders
SPANS = [(1, 1), (1, 16), (1, 33), (7, 7), (16, 16), (3, 19), (17, 64), (40, 40), (1, 200)]


class PagedStep:
    """Random sequences whose keys and values lie in shuffled blocks."""

    def __init__(self, shape: Shape, spans: list[tuple[int, int]], dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.shape, self.spans, self.dtype = shape, spans, dtype
        needed = [-(-context // shape.block_size) for _, context in spans]
        order = torch.randperm(sum(needed) + 3)
        self.tables = [table.clone() for table in torch.split(order[: sum(needed)], needed)]
        pool = (len(order), shape.block_size, shape.num_kv_heads, shape.head_dim)
        # NaN where nothing was stored: reading one slot too many shows at once.
        self.key_cache = torch.full(pool, float("nan"), dtype=dtype)
        self.value_cache = self.key_cache.clone()
        self.queries = [torch.randn(n, shape.num_heads, shape.head_dim).to(dtype) for n, _ in spans]
        kv_shapes = [(context, shape.num_kv_heads, shape.head_dim) for _, context in spans]
        self.keys = [torch.randn(size).to(dtype) for size in kv_shapes]
        self.values = [torch.randn(size).to(dtype) for size in kv_shapes]
        for table, key, value in zip(self.tables, self.keys, self.values, strict=True):
            whole = build_attention_metadata(
                [len(key)], [len(key)], [table], shape.block_size, dtype
            )
            kv_cache_store(key, value, self.key_cache, self.value_cache, whole.slot_mapping)

    def metadata(self, indices: list[int], windows: tuple[int, ...] = ()) -> AttentionMetadata:
        return build_attention_metadata(
            [self.spans[i][0] for i in indices],
            [self.spans[i][1] for i in indices],
            [self.tables[i] for i in indices],
            self.shape.block_size,
            self.dtype,
            windows,
        )

    def attend(
        self, indices: list[int], window: int | None = None, soft_cap: float | None = None
    ) -> list[torch.Tensor]:
        """The chosen sequences in one step: [num_queries, num_heads, head_dim] each."""
        result = paged_attention(
            torch.cat([self.queries[i] for i in indices]),
            self.key_cache,
            self.value_cache,
            self.metadata(indices, () if window is None else (window,)),
            self.shape.head_dim**-0.5,
            window=window,
            soft_cap=soft_cap,
        )
        return list(torch.split(result, [self.spans[i][0] for i in indices]))

    def dense(
        self, index: int, window: int | None = None, soft_cap: float | None = None
    ) -> torch.Tensor:
        """The same in float64, from the formula."""
        queries, keys, values = (x[index].double() for x in (self.queries, self.keys, self.values))
        group = self.shape.num_heads // self.shape.num_kv_heads
        keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * self.shape.head_dim**-0.5
        if soft_cap is not None:
            scores = (scores / soft_cap).tanh() * soft_cap
        num_queries, context = self.spans[index]
        key = torch.arange(context)
        query = torch.arange(context - num_queries, context)[:, None]
        is_visible = key <= query
        if window is not None:
            is_visible &= key > query - window
        scores = scores.masked_fill(~is_visible, float("-inf"))
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_mixed_step_equals_dense_attention(shape: Shape, dtype: torch.dtype) -> None:
    step = PagedStep(shape, SPANS, dtype)

    results = step.attend(list(range(len(SPANS))))

    tolerance = TOLERANCES[dtype]
    for index, result in enumerate(results):
        assert result.dtype == dtype
        torch.testing.assert_close(
            result.double(), step.dense(index), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [1, 5, 16, 21, 39, 500])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
def test_windows_and_caps_equal_dense_attention(
    dtype: torch.dtype, window: int, soft_cap: float | None
) -> None:
    step = PagedStep(SHAPES[1], SPANS, dtype)

    results = step.attend(list(range(len(SPANS))), window, soft_cap)

    tolerance = TOLERANCES[dtype]
    for index, result in enumerate(results):
        assert result.dtype == dtype
        torch.testing.assert_close(
            result.double(), step.dense(index, window, soft_cap), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("shape", SHAPES)
def test_cap_without_window(shape: Shape) -> None:
    step = PagedStep(shape, SPANS, torch.float32)

    results = step.attend(list(range(len(SPANS))), soft_cap=0.7)

    for index, result in enumerate(results):
        expected = step.dense(index, soft_cap=0.7)
        torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)


def test_blocks_before_the_window_are_not_read() -> None:
    # A decode at 200 tokens of which 20 are seen: blocks 11 and 12 of 13.
    step = PagedStep(SHAPES[1], [(1, 200)], torch.float32)
    (expected,) = step.attend([0], window=20)
    gone = step.tables[0][:11]
    step.key_cache[gone] = float("nan")
    step.value_cache[gone] = float("nan")

    (result,) = step.attend([0], window=20)

    assert torch.equal(result, expected)
    (span,) = step.metadata([0], (20,)).windowed_spans[20]
    assert span.block_ids.tolist() == step.tables[0][11:].tolist()
    assert (span.num_keys, span.first_key, span.mask) == (20, 180 - 11 * 16, None)


def test_a_window_that_hides_nothing_costs_nothing() -> None:
    metadata = PagedStep(SHAPES[1], [(7, 20)], torch.float32).metadata([0], (20,))

    assert metadata.windowed_spans[20][0] is metadata.spans[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sequence_is_bit_identical_in_any_company(dtype: torch.dtype) -> None:
    step = PagedStep(SHAPES[1], SPANS, dtype)
    everyone = list(range(len(SPANS)))

    together = step.attend(everyone)
    backwards = step.attend(everyone[::-1])[::-1]

    for index in everyone:
        (alone,) = step.attend([index])
        assert torch.equal(alone, together[index])
        assert torch.equal(alone, backwards[index])


def test_slots_follow_the_block_table() -> None:
    metadata = build_attention_metadata(
        [3, 1], [5, 9], [torch.tensor([7, 2]), torch.tensor([1, 0, 5, 4])], 4, torch.float32
    )

    assert metadata.slot_mapping.tolist() == [7 * 4 + 2, 7 * 4 + 3, 2 * 4, 5 * 4]
    assert [span.query_start for span in metadata.spans] == [0, 3]
    assert metadata.spans[1].block_ids.tolist() == [1, 0, 5]


def test_short_block_table_is_refused() -> None:
    with pytest.raises(ValueError, match="17 tokens needs 2 blocks of 16; the block table has 1"):
        build_attention_metadata([1], [17], [torch.tensor([0])], 16, torch.float32)


def test_more_queries_than_context_are_refused() -> None:
    with pytest.raises(ValueError, match="3 queries do not fit a context of 2 tokens"):
        build_attention_metadata([3], [2], [torch.tensor([0])], 16, torch.float32)
