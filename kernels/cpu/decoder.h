// A decoder's whole step in one parallel region: mixed prefill chunks and decodes, from token ids
// to the next tokens.

#pragma once

#include <array>
#include <stdexcept>
#include <vector>

#include "attention_plan.h"
#include "epilogues.h"
#include "level.h"
#include "pack.h"
#include "rms_norm.h"
#include "rotary.h"
#include "sampling.h"
#include "thread_team.h"
#include "work_share.h"

// kernels/benchmarks defines it, to see where a step's time goes: a part ends here for a member.
#if !defined(REFECTORY_TRACE)
#define REFECTORY_TRACE(part, member)
#endif

namespace refectory::REFECTORY_LEVEL {

// Rows that pass through a part of a matrix together; they stay in the L2 cache.
constexpr int kBlockRows = 96;
// So few rows are normalised by every member for itself: that costs less than to meet.
constexpr int kFewRows = 32;

template <class T>
struct Layer {
    Matrix<T> qkv, o, gate_up, down;
    const float *attention_norm, *mlp_norm;
    const float *attention_output_norm, *mlp_output_norm;  // null: none, as the two below
    const float *query_norm, *key_norm;
    int rotary_table;
    int window;
    Array<T> kv;
};

struct RotaryTable {
    const float *cos, *sin;  // [num_positions][half]
};

template <class T>
class DecoderOf final : public Decoder {
  public:
    explicit DecoderOf(const RefectoryDecoderConfig& config);
    void add_rotary_table(const float* cos, const float* sin) override;
    void add_layer(const RefectoryLayerWeights& weights) override;
    void set_ends(const void* embedding, const void* lm_head, const float* final_norm) override;
    void copy_blocks(const std::int32_t* sources, const std::int32_t* targets, int count) override;
    void step(const RefectoryStep& step) override;

  private:
    enum Stage { kQkv, kAttention, kOut, kGateUp, kDown, kNumStages };

    const float* padded_norm(const float* weights, int size, const std::vector<int>& features);
    Matrix<T> pack(const std::vector<Column<T>>& columns, const std::vector<int>& features,
                   bool has_bias);
    void prepare(const RefectoryStep& step);
    void reserve(int num_tokens, int num_sampled);
    void run(const RefectoryStep& step, int member);
    void embed(const RefectoryStep& step, Span rows);
    void run_layer(const RefectoryStep& step, int index, int member);
    void store_rows(const RefectoryStep& step, const Layer<T>& layer, Span rows);
    void store_key_value(const Layer<T>& layer, int row, int kv_head);
    void rotate(const Layer<T>& layer, int row, const float* norm, float scale, float* head) const;
    void attend(const RefectoryStep& step, const Layer<T>& layer, WorkShare& share, int member);
    template <int Rows>
    void attend_tile(const RefectoryStep& step, const Layer<T>& layer, const AttentionItem& item,
                     Span tokens, const T* const (&after)[kTileBlocks]);
    template <int Rows = kTileRows>
    void attend_tile_of(int rows, const RefectoryStep& step, const Layer<T>& layer,
                        const AttentionItem& item, Span tokens,
                        const T* const (&after)[kTileBlocks]);
    void merge_segments(const AttentionMerge& merge);
    const float* normalise(const float* weights, int num_rows, int member);
    void add_normalised(const float* weights, Span rows);
    void choose_tokens(const RefectoryStep& step, int member);
    void sample_row(const float* logits, const RefectorySamplingRow& row,
                    RefectorySampledToken& token) const;
    template <class Epilogue>
    void multiply(const float* x, int stride, const Matrix<T>& w, const Matrix<T>& following,
                  int num_rows, WorkShare& share, int member, const Epilogue& epilogue);

    // Ends a part of the step for all members.
    void meet([[maybe_unused]] const char* part, [[maybe_unused]] int member) {
        REFECTORY_TRACE(part, member);
        team_.barrier();
        REFECTORY_TRACE("wait", member);
    }
    KVCache<T> cache_of(const Layer<T>& layer) const {
        return {layer.kv.data(), config_.num_kv_heads, head_dim_};
    }
    // A member's even share of some rows, or of anything else that is counted.
    Span rows_of(int member, int num_rows) const {
        const auto at = [&](int i) {
            return static_cast<int>(static_cast<std::int64_t>(num_rows) * i / team_.size());
        };
        return {at(member), at(member + 1)};
    }
    Partial partial(int index) const {
        return {partials_.data() + static_cast<std::size_t>(index) * (Partial::kHeader + kMaxHeadDim)};
    }
    int group_size() const { return config_.num_heads / config_.num_kv_heads; }

    const RefectoryDecoderConfig config_;
    const std::vector<int> head_features_;
    const int head_dim_;            // padded
    const int hidden_size_;         // padded
    const int intermediate_size_;   // padded
    const int qkv_size_, q_size_;   // padded
    const float query_scale_;
    ThreadTeam team_;
    Arena arena_;  // of all that is loaded
    std::vector<RotaryTable> rotary_tables_;
    std::vector<Layer<T>> layers_;
    const T* embedding_ = nullptr;  // [vocab_size][hidden_size]; null where tied
    Matrix<T> lm_head_{};
    const float* final_norm_ = nullptr;

    // Of a step.
    int token_capacity_ = 0, sampled_capacity_ = 0, partial_capacity_ = 0;
    std::vector<int> sequence_of_row_, position_of_row_;
    std::vector<std::int32_t> blocks_;  // [num_sequences][blocks_stride_], of kBlockTokens tokens
    int blocks_stride_ = 0;
    AttentionPlan plan_;
    std::vector<WorkShare> shares_;  // [num_layers][kNumStages]
    WorkShare logits_share_, sample_share_;
    std::vector<Array<float>> own_normed_;  // one a member
    Array<float> residual_, normed_, qkv_, attended_, update_, activated_, partials_;
    Array<float> sampled_rows_, logits_;
};

}  // namespace refectory::REFECTORY_LEVEL

#include "decoder_attention.h"
#include "decoder_load.h"
#include "decoder_step.h"
