// DecoderOf: one step.

#pragma once

#include "decoder.h"

namespace refectory::REFECTORY_LEVEL {

template <class T>
void DecoderOf<T>::step(const RefectoryStep& step) {
    prepare(step);
    team_.run([&](int member) { run(step, member); });
}

template <class T>
void DecoderOf<T>::copy_blocks(const std::int32_t* sources, const std::int32_t* targets, int count) {
    const std::size_t size =
        static_cast<std::size_t>(config_.block_size) * config_.num_kv_heads * 2 * head_dim_;
    for (Layer<T>& layer : layers_) {
        for (int i = 0; i < count; i++) {
            std::copy_n(layer.kv.data() + sources[i] * size, size,
                        layer.kv.data() + targets[i] * size);
        }
    }
}

template <class T>
void DecoderOf<T>::prepare(const RefectoryStep& step) {
    reserve(step.num_tokens, step.num_sampled);
    sequence_of_row_.resize(static_cast<std::size_t>(step.num_tokens));
    position_of_row_.resize(static_cast<std::size_t>(step.num_tokens));
    int longest = 1;
    for (int s = 0; s < step.num_sequences; s++) {
        const int last = step.query_starts[s + 1];
        for (int row = step.query_starts[s]; row < last; row++) {
            sequence_of_row_[row] = s;
            position_of_row_[row] = step.context_lens[s] - (last - row);
        }
        longest = std::max(longest, step.context_lens[s]);
    }
    // The scheduler's blocks are one or more of the kernels'.
    const int factor = config_.block_size / kBlockTokens;
    blocks_stride_ = round_up(longest, kBlockTokens) / kBlockTokens;
    blocks_.resize(static_cast<std::size_t>(step.num_sequences) * blocks_stride_);
    for (int s = 0; s < step.num_sequences; s++) {
        const std::int32_t* table =
            step.block_tables + static_cast<std::size_t>(s) * step.block_table_stride;
        const int num_blocks = round_up(step.context_lens[s], kBlockTokens) / kBlockTokens;
        for (int b = 0; b < num_blocks; b++) {
            blocks_[static_cast<std::size_t>(s) * blocks_stride_ + b] =
                table[b / factor] * factor + b % factor;
        }
    }
    plan_.build(step, config_.num_kv_heads, group_size(), team_.size());
    if (plan_.num_partials > partial_capacity_) {
        partial_capacity_ = plan_.num_partials;
        partials_ = Array<float>(static_cast<std::size_t>(partial_capacity_) *
                                 (Partial::kHeader + kMaxHeadDim));
    }
    for (Counter& counter : counters_) counter.next.store(0, std::memory_order_relaxed);
    logits_counter_.next.store(0, std::memory_order_relaxed);
    sample_counter_.next.store(0, std::memory_order_relaxed);
}

template <class T>
void DecoderOf<T>::reserve(int num_tokens, int num_sampled) {
    if (num_tokens > token_capacity_) {
        token_capacity_ = std::max(num_tokens, std::min(2 * token_capacity_, config_.max_tokens));
        const auto rows = [&](int size) {
            return Array<float>(static_cast<std::size_t>(token_capacity_) * size);
        };
        residual_ = rows(hidden_size_);
        normed_ = rows(hidden_size_);
        update_ = rows(hidden_size_);
        qkv_ = rows(qkv_size_);
        attended_ = rows(q_size_);
        activated_ = rows(intermediate_size_);
    }
    if (num_sampled > sampled_capacity_) {
        sampled_capacity_ = std::max(num_sampled, 2 * sampled_capacity_);
        sampled_rows_ = Array<float>(static_cast<std::size_t>(sampled_capacity_) * hidden_size_);
        logits_ = Array<float>(static_cast<std::size_t>(sampled_capacity_) *
                               lm_head_.matrix.num_panels * kPanelColumns);
    }
}

template <class T>
void DecoderOf<T>::run(const RefectoryStep& step, int member) {
    REFECTORY_TRACE("start", member);
    const Span rows = rows_of(member, step.num_tokens);
    embed(step, rows);
    REFECTORY_TRACE("embed", member);
    for (std::size_t i = 0; i < layers_.size(); i++) {
        run_layer(step, layers_[i], &counters_[i * kNumStages], member);
    }
    choose_tokens(step, member);
}

template <class T>
void DecoderOf<T>::embed(const RefectoryStep& step, Span rows) {
    for (int row = rows.first; row < rows.last; row++) {
        float* out = residual_.data() + static_cast<std::size_t>(row) * hidden_size_;
        const int token = step.token_ids[row];
        if (is_tied_) {
            unpack_column(lm_head_.matrix, token, config_.embedding_scale, out);
        } else {
            const T* in = embedding_.data() + static_cast<std::size_t>(token) * config_.hidden_size;
            for (int i = 0; i < config_.hidden_size; i++) {
                out[i] = to_float(in[i]) * config_.embedding_scale;
            }
        }
    }
}

template <class T>
void DecoderOf<T>::run_layer(const RefectoryStep& step, Layer<T>& layer, Counter* counters,
                             int member) {
    const int num_rows = step.num_tokens;
    const Span rows = rows_of(member, num_rows);
    const std::size_t hidden = static_cast<std::size_t>(hidden_size_);
    const Store to_update{update_.data(), hidden};
    const AddTo to_residual{residual_.data(), hidden};

    normalise(layer.attention_norm.data(), rows);
    meet("norm", member);
    multiply(normed_.data(), hidden_size_, layer.qkv, num_rows, counters[kQkv],
             Store{qkv_.data(), static_cast<std::size_t>(qkv_size_)});
    meet("qkv", member);
    rotate_and_store(layer, rows);
    meet("rotary", member);
    attend(step, layer, counters[kAttention], member);
    meet("attention", member);
    if (layer.has_output_norms) {
        multiply(attended_.data(), q_size_, layer.o, num_rows, counters[kOut], to_update);
        meet("o", member);
        add_normalised(layer.attention_output_norm.data(), rows);
    } else {
        multiply(attended_.data(), q_size_, layer.o, num_rows, counters[kOut], to_residual);
        meet("o", member);
    }
    normalise(layer.mlp_norm.data(), rows);
    meet("norm", member);
    const std::size_t activated = static_cast<std::size_t>(intermediate_size_);
    if (config_.activation == kSilu) {
        multiply(normed_.data(), hidden_size_, layer.gate_up, num_rows, counters[kGateUp],
                 StoreGated<silu>{activated_.data(), activated});
    } else {
        multiply(normed_.data(), hidden_size_, layer.gate_up, num_rows, counters[kGateUp],
                 StoreGated<gelu_tanh>{activated_.data(), activated});
    }
    meet("gate_up", member);
    if (layer.has_output_norms) {
        multiply(activated_.data(), intermediate_size_, layer.down, num_rows, counters[kDown],
                 to_update);
        meet("down", member);
        add_normalised(layer.mlp_output_norm.data(), rows);
    } else {
        multiply(activated_.data(), intermediate_size_, layer.down, num_rows, counters[kDown],
                 to_residual);
        meet("down", member);
    }
}

template <class T>
void DecoderOf<T>::normalise(const float* weights, Span rows) {
    for (std::size_t row = rows.first; row < static_cast<std::size_t>(rows.last); row++) {
        rms_norm(residual_.data() + row * hidden_size_, weights, normed_.data() + row * hidden_size_,
                 config_.hidden_size, hidden_size_, config_.norm_eps);
    }
}

template <class T>
void DecoderOf<T>::add_normalised(const float* weights, Span rows) {
    for (std::size_t row = rows.first; row < static_cast<std::size_t>(rows.last); row++) {
        float* update = update_.data() + row * hidden_size_;
        float* residual = residual_.data() + row * hidden_size_;
        rms_norm(update, weights, update, config_.hidden_size, hidden_size_, config_.norm_eps);
        for (int i = 0; i < hidden_size_; i += kLanes) {
            store(residual + i, load(residual + i) + load(update + i));
        }
    }
}

template <class T>
void DecoderOf<T>::rotate_and_store(const Layer<T>& layer, Span rows) {
    const RotaryTable& table = rotary_tables_[static_cast<std::size_t>(layer.rotary_table)];
    const KVCache<T> cache = cache_of(layer);
    const int half = head_dim_ / 2, num_heads = config_.num_heads;
    for (int row = rows.first; row < rows.last; row++) {
        const int position = position_of_row_[row];
        const float* cos = table.cos.data() + static_cast<std::size_t>(position) * half;
        const float* sin = table.sin.data() + static_cast<std::size_t>(position) * half;
        float* heads = qkv_.data() + static_cast<std::size_t>(row) * qkv_size_;
        for (int h = 0; h < num_heads + config_.num_kv_heads; h++) {
            float* head = heads + h * head_dim_;
            const bool is_query = h < num_heads;
            if (layer.has_head_norms) {
                const auto& norm = is_query ? layer.query_norm : layer.key_norm;
                rms_norm(head, norm.data(), head, config_.head_dim, head_dim_, config_.norm_eps);
            }
            rotary(head, cos, sin, half, is_query ? query_scale_ : 1.0f);
        }
        const std::int32_t block =
            blocks_[static_cast<std::size_t>(sequence_of_row_[row]) * blocks_stride_ +
                    position / kBlockTokens];
        const float* keys = heads + q_size_;
        const float* values = keys + config_.num_kv_heads * head_dim_;
        for (int h = 0; h < config_.num_kv_heads; h++) {
            kv_cache_store(cache, block, h, position % kBlockTokens, keys + h * head_dim_,
                           values + h * head_dim_);
        }
    }
}

template <class T>
void DecoderOf<T>::attend(const RefectoryStep& step, const Layer<T>& layer, Counter& counter,
                          int member) {
    const KVCache<T> cache = cache_of(layer);
    const int num_items = static_cast<int>(plan_.items.size());
    for (int i = counter.take(); i < num_items;) {
        const int following = counter.take();
        const AttentionItem& item = plan_.items[i];
        const T* after[kTileBlocks];
        const AttentionItem& next = plan_.items[following < num_items ? following : i];
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

template <class T>
void DecoderOf<T>::choose_tokens(const RefectoryStep& step, int member) {
    const Span rows = rows_of(member, step.num_sampled);
    for (int i = rows.first; i < rows.last; i++) {
        const std::size_t row = static_cast<std::size_t>(step.query_starts[step.sampled[i] + 1]) - 1;
        rms_norm(residual_.data() + row * hidden_size_, final_norm_.data(),
                 sampled_rows_.data() + static_cast<std::size_t>(i) * hidden_size_,
                 config_.hidden_size, hidden_size_, config_.norm_eps);
    }
    meet("norm", member);
    const std::size_t stride = static_cast<std::size_t>(lm_head_.matrix.num_panels) * kPanelColumns;
    const Store to_logits{logits_.data(), stride};
    if (config_.logit_soft_cap == 0.0f) {
        multiply(sampled_rows_.data(), hidden_size_, lm_head_, step.num_sampled, logits_counter_,
                 to_logits);
    } else {
        multiply(sampled_rows_.data(), hidden_size_, lm_head_, step.num_sampled, logits_counter_,
                 StoreCapped{to_logits, config_.logit_soft_cap});
    }
    meet("logits", member);
    for (int i = sample_counter_.take(); i < step.num_sampled; i = sample_counter_.take()) {
        const float* logits = logits_.data() + static_cast<std::size_t>(i) * stride;
        if (step.logits != nullptr) {
            std::copy_n(logits, config_.vocab_size,
                        step.logits + static_cast<std::size_t>(i) * config_.vocab_size);
        }
        if (step.rows != nullptr) sample(logits, config_.vocab_size, step.rows[i], step.tokens[i]);
    }
    REFECTORY_TRACE("sampling", member);
}

// Pieces are some rows times some panels, handed out as threads become free.
template <class T>
template <class Epilogue>
void DecoderOf<T>::multiply(const float* x, int stride, const PackedMatrix<T>& w, int num_rows,
                            Counter& counter, const Epilogue& epilogue) {
    if (num_rows == 0) return;
    const int num_blocks = (num_rows + kBlockRows - 1) / kBlockRows;
    const int num_parts = std::clamp((4 * team_.size() + num_blocks - 1) / num_blocks, 1,
                                     w.matrix.num_panels);
    for (int i = counter.take(); i < num_blocks * num_parts; i = counter.take()) {
        const int block = i / num_parts, part = i % num_parts;
        const Span rows{static_cast<int>(static_cast<std::int64_t>(num_rows) * block / num_blocks),
                        static_cast<int>(static_cast<std::int64_t>(num_rows) * (block + 1) / num_blocks)};
        const Span panels{w.matrix.num_panels * part / num_parts,
                          w.matrix.num_panels * (part + 1) / num_parts};
        linear(x, static_cast<std::size_t>(stride), w.matrix, rows, panels, epilogue);
    }
}

}  // namespace refectory::REFECTORY_LEVEL
