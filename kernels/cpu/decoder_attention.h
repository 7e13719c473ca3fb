// DecoderOf: a step's keys and values into the cache, and its attention.

#pragma once

#include "decoder.h"

namespace refectory::REFECTORY_LEVEL {

template <class T>
void DecoderOf<T>::store_rows(const RefectoryStep& step, const Layer<T>& layer, Span rows) {
    for (int row = rows.first; row < rows.last; row++) {
        const int s = sequence_of_row_[row];
        const bool is_single = step.query_starts[s + 1] - step.query_starts[s] == 1;
        if (is_single && plan_.stores_single_tokens) continue;
        for (int head = 0; head < config_.num_kv_heads; head++) store_key_value(layer, row, head);
    }
}

template <class T>
void DecoderOf<T>::store_key_value(const Layer<T>& layer, int row, int kv_head) {
    alignas(64) float key[kMaxHeadDim];
    const float* keys = qkv_.data() + static_cast<std::size_t>(row) * qkv_size_ + q_size_;
    std::copy_n(keys + kv_head * head_dim_, head_dim_, key);
    rotate(layer, row, layer.key_norm, 1.0f, key);
    const int position = position_of_row_[row];
    const std::int32_t block =
        blocks_[static_cast<std::size_t>(sequence_of_row_[row]) * blocks_stride_ +
                position / kBlockTokens];
    const float* value = keys + (config_.num_kv_heads + kv_head) * head_dim_;
    kv_cache_store(cache_of(layer), block, kv_head, position % kBlockTokens, key, value);
}

// A query or key head of a row as attention wants it; norm: null where the family has none.
template <class T>
void DecoderOf<T>::rotate(const Layer<T>& layer, int row, const float* norm, float scale,
                          float* head) const {
    if (norm != nullptr) {
        rms_norm(head, norm, head, config_.head_dim, head_dim_, config_.norm_eps);
    }
    const RotaryTable& table = rotary_tables_[static_cast<std::size_t>(layer.rotary_table)];
    const int half = head_dim_ / 2;
    const std::size_t at = static_cast<std::size_t>(position_of_row_[row]) * half;
    rotary(head, table.cos + at, table.sin + at, half, scale);
}

template <class T>
void DecoderOf<T>::attend(const RefectoryStep& step, const Layer<T>& layer, WorkShare& share,
                          int member) {
    const KVCache<T> cache = cache_of(layer);
    for (int i = share.take(member); i != kNoPiece;) {
        const int following = share.take(member);
        const AttentionItem& item = plan_.items[i];
        const T* after[kTileBlocks];
        const AttentionItem& next = plan_.items[following == kNoPiece ? i : following];
        const PagedHead<T> next_head{
            cache, blocks_.data() + static_cast<std::size_t>(next.sequence) * blocks_stride_,
            next.kv_head};
        const int next_first = std::max(next.segment, 0) * kSegmentTokens;
        next_head.tile(next_first, step.context_lens[next.sequence], after);
        const int heads = item.heads.last - item.heads.first;
        const int most = std::max(1, kTileRows / heads);
        for (int first = item.tokens.first; first < item.tokens.last; first += most) {
            const Span tokens{first, std::min(first + most, item.tokens.last)};
            attend_tile_of((tokens.last - tokens.first) * heads, step, layer, item, tokens, after);
        }
        i = following;
    }
    if (plan_.merges.empty()) return;
    meet("attention", member);
    const Span merges = rows_of(member, static_cast<int>(plan_.merges.size()));
    for (int i = merges.first; i < merges.last; i++) merge_segments(plan_.merges[i]);
}

template <class T>
template <int Rows>
void DecoderOf<T>::attend_tile_of(int rows, const RefectoryStep& step, const Layer<T>& layer,
                                  const AttentionItem& item, Span tokens,
                                  const T* const (&after)[kTileBlocks]) {
    if (rows == Rows) {
        attend_tile<Rows>(step, layer, item, tokens, after);
    } else if constexpr (Rows > 1) {
        attend_tile_of<Rows - 1>(rows, step, layer, item, tokens, after);
    }
}

template <class T>
template <int Rows>
void DecoderOf<T>::attend_tile(const RefectoryStep& step, const Layer<T>& layer,
                               const AttentionItem& item, Span tokens,
                               const T* const (&after)[kTileBlocks]) {
    const int last_segment = (step.context_lens[item.sequence] - 1) / kSegmentTokens;
    const bool reads_last = item.segment < 0 || item.segment == last_segment;
    const bool is_single =
        step.query_starts[item.sequence + 1] - step.query_starts[item.sequence] == 1;
    if (is_single && reads_last && plan_.stores_single_tokens) {
        store_key_value(layer, tokens.first, item.kv_head);
    }
    QueryTile<Rows> tile;
    float* outs[Rows] = {};
    Span keys{step.context_lens[item.sequence], 0};
    int r = 0;
    for (int token = tokens.first; token < tokens.last; token++) {
        const int position = position_of_row_[token];
        const Span sees{layer.window == 0 ? 0 : std::max(0, position + 1 - layer.window),
                        position + 1};
        keys = {std::min(keys.first, sees.first), std::max(keys.last, sees.last)};
        for (int h = item.heads.first; h < item.heads.last; h++, r++) {
            const std::size_t head = static_cast<std::size_t>(item.kv_head * group_size() + h);
            std::copy_n(qkv_.data() + static_cast<std::size_t>(token) * qkv_size_ + head * head_dim_,
                        head_dim_, tile.query[r]);
            rotate(layer, token, layer.query_norm, query_scale_, tile.query[r]);
            tile.sees[r] = sees;
            outs[r] = attended_.data() + static_cast<std::size_t>(token) * q_size_ + head * head_dim_;
        }
    }
    const KVCache<T> cache = cache_of(layer);
    const PagedHead<T> paged{
        cache, blocks_.data() + static_cast<std::size_t>(item.sequence) * blocks_stride_,
        item.kv_head};
    const auto attend_keys = [&](Span of, const Partial(&out)[Rows]) {
        if (tokens.last - tokens.first == 1) {
            attend_segment<Rows, true>(tile, paged, of, config_.attention_soft_cap, after, out);
        } else {
            attend_segment<Rows, false>(tile, paged, of, config_.attention_soft_cap, after, out);
        }
    };
    const auto segment = [&](int s) {
        return Span{std::max(keys.first, s * kSegmentTokens),
                    std::min(keys.last, (s + 1) * kSegmentTokens)};
    };
    if (item.segment >= 0) {
        Partial out[Rows];
        for (r = 0; r < Rows; r++) out[r] = partial(item.partial + r);
        attend_keys(segment(item.segment), out);
        return;
    }
    alignas(64) float total_data[Rows][Partial::kHeader + kMaxHeadDim];
    alignas(64) float part_data[Rows][Partial::kHeader + kMaxHeadDim];
    Partial totals[Rows], parts[Rows];
    for (r = 0; r < Rows; r++) {
        totals[r] = {total_data[r]};
        parts[r] = {part_data[r]};
        totals[r].clear(head_dim_);
    }
    for (int s = keys.first / kSegmentTokens; s * kSegmentTokens < keys.last; s++) {
        attend_keys(segment(s), parts);
        for (r = 0; r < Rows; r++) totals[r].merge(parts[r], head_dim_);
    }
    for (r = 0; r < Rows; r++) totals[r].write(outs[r], head_dim_);
}

template <class T>
void DecoderOf<T>::merge_segments(const AttentionMerge& merge) {
    const AttentionItem& item = merge.rows;
    const int num_rows = item.heads.last - item.heads.first;
    alignas(64) float data[Partial::kHeader + kMaxHeadDim];
    const Partial total{data};
    for (int r = 0; r < num_rows; r++) {
        total.clear(head_dim_);
        for (int s = 0; s < merge.num_segments; s++) {
            total.merge(partial(item.partial + s * num_rows + r), head_dim_);
        }
        const int head = item.kv_head * group_size() + item.heads.first + r;
        total.write(attended_.data() + static_cast<std::size_t>(item.tokens.first) * q_size_ +
                        head * head_dim_,
                    head_dim_);
    }
}

}  // namespace refectory::REFECTORY_LEVEL
