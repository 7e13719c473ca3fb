// DecoderOf: from a checkpoint's tensors to packed ones.

#pragma once

#include "decoder.h"

namespace refectory::REFECTORY_LEVEL {

template <class T>
DecoderOf<T>::DecoderOf(const RefectoryDecoderConfig& config)
    : config_(config),
      head_features_(head_features(config.head_dim)),
      head_dim_(static_cast<int>(head_features_.size())),
      hidden_size_(round_up(config.hidden_size, 32)),
      intermediate_size_(round_up(config.intermediate_size, 32)),
      qkv_size_(round_up((config.num_heads + 2 * config.num_kv_heads) * head_dim_, 32)),
      q_size_(config.num_heads * head_dim_),
      query_scale_(config.attention_scale * (config.attention_soft_cap == 0 ? kLog2E : 1.0f)),
      team_(std::vector<int>(config.cpus, config.cpus + config.num_threads)),
      shares_(static_cast<std::size_t>(config.num_layers) * kNumStages, WorkShare(team_.size())),
      logits_share_(team_.size()),
      sample_share_(team_.size()) {
    if (head_dim_ > kMaxHeadDim) throw std::invalid_argument("head_dim is above 256");
    layers_.reserve(static_cast<std::size_t>(config.num_layers));
    for (int member = 0; member < team_.size(); member++) {
        own_normed_.emplace_back(static_cast<std::size_t>(kFewRows) * hidden_size_);
    }
}

template <class T>
void DecoderOf<T>::add_rotary_table(const float* cos, const float* sin) {
    const int half = config_.head_dim / 2, padded = head_dim_ / 2;
    const auto copy = [&](const float* from) {
        float* const to =
            arena_.allocate<float>(static_cast<std::size_t>(config_.num_positions) * padded);
        for (std::size_t p = 0; p < static_cast<std::size_t>(config_.num_positions); p++) {
            std::copy_n(from + p * half, half, to + p * padded);
        }
        return to;
    };
    rotary_tables_.push_back({copy(cos), copy(sin)});
}

template <class T>
const float* DecoderOf<T>::padded_norm(const float* weights, int padded,
                                       const std::vector<int>& features) {
    if (weights == nullptr) return nullptr;
    float* const norm = arena_.allocate<float>(static_cast<std::size_t>(padded));
    for (std::size_t i = 0; i < features.size(); i++) {
        if (features[i] != kZeros) norm[i] = weights[features[i]];
    }
    return norm;
}

template <class T>
Matrix<T> DecoderOf<T>::pack(const std::vector<Column<T>>& columns,
                             const std::vector<int>& features, bool has_bias) {
    const Matrix<T> matrix =
        allocate_matrix<T>(arena_, static_cast<int>(columns.size()),
                           static_cast<int>(features.size()), has_bias);
    team_.run([&](int member) {
        pack_panels(matrix, rows_of(member, matrix.num_panels), columns, features);
    });
    return matrix;
}

template <class T>
void DecoderOf<T>::add_layer(const RefectoryLayerWeights& w) {
    const auto& c = config_;
    if (static_cast<int>(layers_.size()) == c.num_layers) {
        throw std::logic_error("a layer more than the config has");
    }
    const std::vector<int> hidden = padded_features(c.hidden_size, hidden_size_);
    std::vector<Column<T>> columns;
    const auto add = [&](const void* matrix, const float* bias, int row, int in_features) {
        const T* rows = static_cast<const T*>(matrix);
        columns.push_back({rows + static_cast<std::size_t>(row) * in_features,
                           bias == nullptr ? 0.0f : bias[row]});
    };
    const auto add_heads = [&](const void* matrix, const float* bias, int num_heads) {
        for (int head = 0; head < num_heads; head++) {
            for (const int feature : head_features_) {
                if (feature == kZeros) {
                    columns.push_back({});
                } else {
                    add(matrix, bias, head * c.head_dim + feature, c.hidden_size);
                }
            }
        }
    };
    const auto pack_columns = [&](const std::vector<int>& features, const float* bias) {
        const Matrix<T> packed = pack(columns, features, bias != nullptr);
        columns.clear();
        return packed;
    };

    Layer<T>& layer = layers_.emplace_back();
    add_heads(w.q, w.q_bias, c.num_heads);
    add_heads(w.k, w.k_bias, c.num_kv_heads);
    add_heads(w.v, w.v_bias, c.num_kv_heads);
    layer.qkv = pack_columns(hidden, w.q_bias);

    std::vector<int> attended;
    for (int head = 0; head < c.num_heads; head++) {
        for (const int feature : head_features_) {
            attended.push_back(feature == kZeros ? kZeros : head * c.head_dim + feature);
        }
    }
    for (int row = 0; row < c.hidden_size; row++) {
        add(w.o, w.o_bias, row, c.num_heads * c.head_dim);
    }
    layer.o = pack_columns(attended, w.o_bias);

    for (int first = 0; first < c.intermediate_size; first += kLanes) {
        for (const auto& [matrix, bias] : {std::pair(w.gate, w.gate_bias), std::pair(w.up, w.up_bias)}) {
            for (int row = first; row < first + kLanes; row++) {
                if (row < c.intermediate_size) {
                    add(matrix, bias, row, c.hidden_size);
                } else {
                    columns.push_back({});
                }
            }
        }
    }
    layer.gate_up = pack_columns(hidden, w.gate_bias);

    for (int row = 0; row < c.hidden_size; row++) add(w.down, w.down_bias, row, c.intermediate_size);
    layer.down = pack_columns(padded_features(c.intermediate_size, intermediate_size_), w.down_bias);

    layer.attention_norm = padded_norm(w.attention_norm, hidden_size_, hidden);
    layer.attention_output_norm = padded_norm(w.attention_output_norm, hidden_size_, hidden);
    layer.mlp_norm = padded_norm(w.mlp_norm, hidden_size_, hidden);
    layer.mlp_output_norm = padded_norm(w.mlp_output_norm, hidden_size_, hidden);
    layer.query_norm = padded_norm(w.query_norm, head_dim_, head_features_);
    layer.key_norm = padded_norm(w.key_norm, head_dim_, head_features_);
    layer.rotary_table = w.rotary_table;
    layer.window = w.window;
    layer.kv = Array<T>(static_cast<std::size_t>(c.num_blocks) * c.block_size * c.num_kv_heads * 2 *
                        head_dim_);
}

template <class T>
void DecoderOf<T>::set_ends(const void* embedding, const void* lm_head, const float* final_norm) {
    const auto& c = config_;
    const bool is_tied = lm_head == nullptr;
    const T* rows = static_cast<const T*>(is_tied ? embedding : lm_head);
    std::vector<Column<T>> columns;
    for (int token = 0; token < c.vocab_size; token++) {
        columns.push_back({rows + static_cast<std::size_t>(token) * c.hidden_size});
    }
    const std::vector<int> hidden = padded_features(c.hidden_size, hidden_size_);
    lm_head_ = pack(columns, hidden, false);
    final_norm_ = padded_norm(final_norm, hidden_size_, hidden);
    if (is_tied) return;
    const std::size_t size = static_cast<std::size_t>(c.vocab_size) * c.hidden_size;
    T* const copy = arena_.allocate<T>(size);
    std::copy_n(static_cast<const T*>(embedding), size, copy);
    embedding_ = copy;
}

}  // namespace refectory::REFECTORY_LEVEL
