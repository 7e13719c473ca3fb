// DecoderOf: one step, all but its attention.

#pragma once

#include "decoder.h"

namespace refectory::REFECTORY_LEVEL {

template <class T>
void DecoderOf<T>::step(const RefectoryStep& step) {
    if (static_cast<int>(layers_.size()) != config_.num_layers || final_norm_ == nullptr) {
        throw std::logic_error("a step before all layers and ends are set");
    }
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
        partials_ = Array<float>(static_cast<std::size_t>(plan_.num_partials) *
                                 (Partial::kHeader + kMaxHeadDim));
        partial_capacity_ = plan_.num_partials;
    }
    const auto num_blocks_of = [](int rows) { return (rows + kBlockRows - 1) / kBlockRows; };
    const int num_blocks = num_blocks_of(step.num_tokens);
    for (std::size_t i = 0; i < layers_.size(); i++) {
        WorkShare* shares = &shares_[i * kNumStages];
        shares[kQkv].reset(num_blocks * layers_[i].qkv.num_panels);
        shares[kAttention].reset(static_cast<int>(plan_.items.size()));
        shares[kOut].reset(num_blocks * layers_[i].o.num_panels);
        shares[kGateUp].reset(num_blocks * layers_[i].gate_up.num_panels);
        shares[kDown].reset(num_blocks * layers_[i].down.num_panels);
    }
    logits_share_.reset(num_blocks_of(step.num_sampled) * lm_head_.num_panels);
    sample_share_.reset(step.num_sampled);
}

template <class T>
void DecoderOf<T>::reserve(int num_tokens, int num_sampled) {
    if (num_tokens > token_capacity_) {
        const int capacity = std::max(num_tokens, std::min(2 * token_capacity_, config_.max_tokens));
        const auto rows = [&](int size) {
            return Array<float>(static_cast<std::size_t>(capacity) * size);
        };
        token_capacity_ = 0;  // should the memory not be had
        residual_ = rows(hidden_size_);
        normed_ = rows(hidden_size_);
        update_ = rows(hidden_size_);
        qkv_ = rows(qkv_size_);
        attended_ = rows(q_size_);
        activated_ = rows(intermediate_size_);
        token_capacity_ = capacity;
    }
    if (num_sampled > sampled_capacity_) {
        const int capacity = std::max(num_sampled, 2 * sampled_capacity_);
        sampled_capacity_ = 0;
        sampled_rows_ = Array<float>(static_cast<std::size_t>(capacity) * hidden_size_);
        logits_ = Array<float>(static_cast<std::size_t>(capacity) * lm_head_.num_panels *
                               kPanelColumns);
        sampled_capacity_ = capacity;
    }
}

template <class T>
void DecoderOf<T>::run(const RefectoryStep& step, int member) {
    REFECTORY_TRACE("start", member);
    const Span rows = rows_of(member, step.num_tokens);
    embed(step, rows);
    REFECTORY_TRACE("embed", member);
    if (step.num_tokens <= kFewRows) meet("embed", member);
    for (int i = 0; i < config_.num_layers; i++) run_layer(step, i, member);
    choose_tokens(step, member);
}

template <class T>
void DecoderOf<T>::embed(const RefectoryStep& step, Span rows) {
    for (int row = rows.first; row < rows.last; row++) {
        float* out = residual_.data() + static_cast<std::size_t>(row) * hidden_size_;
        const int token = step.token_ids[row];
        if (embedding_ == nullptr) {
            unpack_column(lm_head_, token, config_.embedding_scale, out);
        } else {
            const T* in = embedding_ + static_cast<std::size_t>(token) * config_.hidden_size;
            for (int i = 0; i < config_.hidden_size; i++) {
                out[i] = to_float(in[i]) * config_.embedding_scale;
            }
            // Of an earlier step there may be a NaN, which the norms would spread.
            std::fill(out + config_.hidden_size, out + hidden_size_, 0.0f);
        }
    }
}

template <class T>
void DecoderOf<T>::run_layer(const RefectoryStep& step, int index, int member) {
    const Layer<T>& layer = layers_[index];
    const bool is_last = index + 1 == config_.num_layers;
    const Matrix<T>& following = is_last ? lm_head_ : layers_[index + 1].qkv;
    WorkShare* shares = &shares_[static_cast<std::size_t>(index) * kNumStages];
    const int num_rows = step.num_tokens;
    const Span rows = rows_of(member, num_rows);
    const std::size_t hidden = static_cast<std::size_t>(hidden_size_);
    const Store to_update{update_.data(), hidden};
    const AddTo to_residual{residual_.data(), hidden};

    const float* normed = normalise(layer.attention_norm, num_rows, member);
    multiply(normed, hidden_size_, layer.qkv, layer.o, num_rows, shares[kQkv], member,
             Store{qkv_.data(), static_cast<std::size_t>(qkv_size_)});
    meet("qkv", member);
    if (plan_.stores_others) {
        store_rows(step, layer, rows);
        meet("rotary", member);
    }
    attend(step, layer, shares[kAttention], member);
    meet("attention", member);
    if (layer.attention_output_norm != nullptr) {
        multiply(attended_.data(), q_size_, layer.o, layer.gate_up, num_rows, shares[kOut], member,
                 to_update);
        meet("o", member);
        add_normalised(layer.attention_output_norm, rows);
        if (num_rows <= kFewRows) meet("norm", member);
    } else {
        multiply(attended_.data(), q_size_, layer.o, layer.gate_up, num_rows, shares[kOut], member,
                 to_residual);
        meet("o", member);
    }
    normed = normalise(layer.mlp_norm, num_rows, member);
    const std::size_t activated = static_cast<std::size_t>(intermediate_size_);
    if (config_.activation == kSilu) {
        multiply(normed, hidden_size_, layer.gate_up, layer.down, num_rows, shares[kGateUp],
                 member, StoreGated<silu>{activated_.data(), activated});
    } else {
        multiply(normed, hidden_size_, layer.gate_up, layer.down, num_rows, shares[kGateUp],
                 member, StoreGated<gelu_tanh>{activated_.data(), activated});
    }
    meet("gate_up", member);
    if (layer.mlp_output_norm != nullptr) {
        multiply(activated_.data(), intermediate_size_, layer.down, following, num_rows,
                 shares[kDown], member, to_update);
        meet("down", member);
        add_normalised(layer.mlp_output_norm, rows);
        // The rows whose tokens are chosen may be another member's.
        if (num_rows <= kFewRows || is_last) meet("norm", member);
    } else {
        multiply(activated_.data(), intermediate_size_, layer.down, following, num_rows,
                 shares[kDown], member, to_residual);
        meet("down", member);
    }
}

// Returns the normalised residual rows, complete for the member that asks.
template <class T>
const float* DecoderOf<T>::normalise(const float* weights, int num_rows, int member) {
    const bool are_few = num_rows <= kFewRows;
    float* const out = are_few ? own_normed_[member].data() : normed_.data();
    const Span rows = are_few ? Span{0, num_rows} : rows_of(member, num_rows);
    for (std::size_t row = rows.first; row < static_cast<std::size_t>(rows.last); row++) {
        rms_norm(residual_.data() + row * hidden_size_, weights, out + row * hidden_size_,
                 config_.hidden_size, hidden_size_, config_.norm_eps);
    }
    if (are_few) {
        REFECTORY_TRACE("norm", member);
    } else {
        meet("norm", member);
    }
    return out;
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
void DecoderOf<T>::choose_tokens(const RefectoryStep& step, int member) {
    const Span rows = rows_of(member, step.num_sampled);
    for (int i = rows.first; i < rows.last; i++) {
        const std::size_t row = static_cast<std::size_t>(step.query_starts[step.sampled[i] + 1]) - 1;
        rms_norm(residual_.data() + row * hidden_size_, final_norm_,
                 sampled_rows_.data() + static_cast<std::size_t>(i) * hidden_size_,
                 config_.hidden_size, hidden_size_, config_.norm_eps);
    }
    meet("norm", member);
    const std::size_t stride = static_cast<std::size_t>(lm_head_.num_panels) * kPanelColumns;
    const Store to_logits{logits_.data(), stride};
    if (config_.logit_soft_cap == 0.0f) {
        multiply(sampled_rows_.data(), hidden_size_, lm_head_, lm_head_, step.num_sampled,
                 logits_share_, member, to_logits);
    } else {
        multiply(sampled_rows_.data(), hidden_size_, lm_head_, lm_head_, step.num_sampled,
                 logits_share_, member, StoreCapped{to_logits, config_.logit_soft_cap});
    }
    meet("logits", member);
    for (int i = sample_share_.take(member); i != kNoPiece; i = sample_share_.take(member)) {
        const float* logits = logits_.data() + static_cast<std::size_t>(i) * stride;
        if (step.logits != nullptr) {
            std::copy_n(logits, config_.vocab_size,
                        step.logits + static_cast<std::size_t>(i) * config_.vocab_size);
        }
        if (step.rows != nullptr) sample_row(logits, step.rows[i], step.tokens[i]);
    }
    REFECTORY_TRACE("sampling", member);
}

// Nothing may be thrown while the team computes: without scratch memory the one row fails.
template <class T>
void DecoderOf<T>::sample_row(const float* logits, const RefectorySamplingRow& row,
                              RefectorySampledToken& token) const {
    try {
        sample(logits, config_.vocab_size, row, token);
    } catch (const std::bad_alloc&) {
        token.status = kOutOfMemory;
    }
}

// A piece is a block of rows times a panel. following: the matrix that is multiplied next.
template <class T>
template <class Epilogue>
void DecoderOf<T>::multiply(const float* x, int stride, const Matrix<T>& w,
                            const Matrix<T>& following, int num_rows, WorkShare& share, int member,
                            const Epilogue& epilogue) {
    const int num_blocks = (num_rows + kBlockRows - 1) / kBlockRows;
    const int num_tiles = (num_rows + kTileRows - 1) / kTileRows;
    for (int i = share.take(member); i != kNoPiece; i = share.take(member)) {
        const auto first_row = [&](int block) {
            return std::min(num_tiles * block / num_blocks * kTileRows, num_rows);
        };
        const Span rows{first_row(i / w.num_panels), first_row(i / w.num_panels + 1)};
        const T* next = i + 1 == share.last(member)
                            ? following.panel(rows_of(member, following.num_panels).first)
                            : w.panel((i + 1) % w.num_panels);
        linear(x, static_cast<std::size_t>(stride), w, rows, i % w.num_panels, next,
               epilogue);
    }
}

}  // namespace refectory::REFECTORY_LEVEL
