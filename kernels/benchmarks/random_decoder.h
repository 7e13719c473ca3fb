// The real decoder with random weights and full KV blocks, and the times of its steps.

#pragma once

#include <memory>

#include "model_shape.h"
#include "step_trace.h"
// The trace first: the decoder's marks call it.
#include "decoder.h"

namespace refectory::benchmark {

using namespace refectory::REFECTORY_LEVEL;

// Of one batch's steps.
struct StepRuns {
    std::vector<double> steps_s;
    std::vector<std::vector<StepPart>> parts;

    const std::vector<StepPart>& best() const {
        const auto best = std::min_element(steps_s.begin(), steps_s.end());
        return parts[static_cast<std::size_t>(best - steps_s.begin())];
    }
    // A part's seconds until all members are through with it.
    std::vector<double> part_s(std::string_view name) const {
        std::vector<double> seconds;
        for (const auto& run : parts) {
            for (const StepPart& part : run) {
                if (part.name == name) seconds.push_back(part.work_s + part.wait_s);
            }
        }
        return seconds;
    }
};

class RandomDecoder {
  public:
    // Steps may have up to so many sequences of up to so many tokens.
    RandomDecoder(const ModelShape& shape, int num_threads, int max_sequences, int max_context)
        : shape_(shape), num_threads_(num_threads), blocks_per_sequence_(
              round_up(max_context, kBlockTokens) / kBlockTokens) {
        const std::vector<int> cpus = thread_cpus(num_threads);
        RefectoryDecoderConfig config{};
        config.num_layers = shape.num_layers;
        config.hidden_size = shape.hidden_size;
        config.num_heads = shape.num_heads;
        config.num_kv_heads = shape.num_kv_heads;
        config.head_dim = shape.head_dim;
        config.intermediate_size = shape.intermediate_size;
        config.vocab_size = shape.vocab_size;
        config.activation = kSilu;
        config.element = kBfloat16;
        config.num_blocks = max_sequences * blocks_per_sequence_;
        config.block_size = kBlockTokens;
        config.max_tokens = std::max(max_sequences, max_context);
        config.num_positions = max_context;
        config.num_threads = num_threads;
        config.cpus = cpus.data();
        config.norm_eps = 1e-5f;
        config.attention_scale = 0.125f;
        config.embedding_scale = 1.0f;
        decoder_ = std::make_unique<DecoderOf<bfloat16>>(config);
        add_weights();
        fill_blocks(max_sequences, max_context);
    }

    StepRuns run(const Batch& batch, double case_s) {
        StepRuns runs;
        step(batch);
        const double end = now_s() + case_s;
        do {
            runs.steps_s.push_back(seconds_of([&] { step(batch); }));
            runs.parts.push_back(trace.parts());
        } while (now_s() < end);
        return runs;
    }

  private:
    void add_weights() {
        const ModelShape& s = shape_;
        const std::size_t largest = static_cast<std::size_t>(s.hidden_size) *
                                    std::max({s.vocab_size, s.intermediate_size, s.num_heads * s.head_dim});
        const Array<bfloat16> matrix(largest);
        std::uint32_t random = 1;
        for (std::size_t i = 0; i < largest; i++) {
            random = random * 1664525u + 1013904223u;
            // Of either sign, 2^-7 to 2^-5: neither NaN nor subnormal comes out in the end.
            matrix[i].bits = static_cast<std::uint16_t>(0x3c00u | (random >> 16 & 0x80ffu));
        }
        const std::vector<float> ones(static_cast<std::size_t>(s.hidden_size), 1.0f);
        const std::vector<float> turns(
            static_cast<std::size_t>(blocks_per_sequence_) * kBlockTokens * s.head_dim / 2, 0.7f);
        RefectoryLayerWeights layer{};
        layer.q = layer.k = layer.v = layer.o = matrix.data();
        layer.gate = layer.up = layer.down = matrix.data();
        layer.attention_norm = layer.mlp_norm = ones.data();
        decoder_->add_rotary_table(turns.data(), turns.data());
        for (int i = 0; i < s.num_layers; i++) decoder_->add_layer(layer);
        decoder_->set_ends(matrix.data(), nullptr, ones.data());
    }

    // Memory that was never written is read faster than any other.
    void fill_blocks(int num_sequences, int context) {
        for (int block = 0; block < num_sequences * blocks_per_sequence_; block++) {
            block_ids_.push_back(block);
        }
        step({1, context, context});
        for (int s = 1; s < num_sequences; s++) {
            decoder_->copy_blocks(block_ids_.data(), block_ids_.data() + s * blocks_per_sequence_,
                                  blocks_per_sequence_);
        }
    }

    void step(const Batch& batch) {
        const std::size_t num_sequences = static_cast<std::size_t>(batch.num_sequences);
        std::vector<std::int32_t> token_ids, query_starts, sampled;
        for (int i = 0; i < batch.num_tokens(); i++) token_ids.push_back(i % shape_.vocab_size);
        for (int s = 0; s <= batch.num_sequences; s++) query_starts.push_back(s * batch.num_new);
        for (int s = 0; s < batch.num_sequences; s++) sampled.push_back(s);
        const std::vector<std::int32_t> context_lens(num_sequences, batch.context);
        RefectorySamplingRow greedy{};
        greedy.top_p = greedy.repetition_penalty = 1.0;
        greedy.num_logprobs = -1;
        const std::vector<RefectorySamplingRow> rows(num_sequences, greedy);
        std::vector<RefectorySampledToken> tokens(num_sequences);
        RefectoryStep step{};
        step.num_tokens = batch.num_tokens();
        step.num_sequences = step.num_sampled = batch.num_sequences;
        step.block_table_stride = blocks_per_sequence_;
        step.token_ids = token_ids.data();
        step.query_starts = query_starts.data();
        step.context_lens = context_lens.data();
        step.block_tables = block_ids_.data();
        step.sampled = sampled.data();
        step.rows = rows.data();
        step.tokens = tokens.data();
        trace.start(num_threads_);
        decoder_->step(step);
    }

    const ModelShape shape_;
    const int num_threads_, blocks_per_sequence_;
    std::unique_ptr<DecoderOf<bfloat16>> decoder_;
    std::vector<std::int32_t> block_ids_;
};

}  // namespace refectory::benchmark
