// What one instruction level offers; a table per level, made by level.cpp.

#pragma once

#include <memory>

#include "abi.h"

namespace refectory {

// A model and its KV cache. One thread calls it. Errors are exceptions.
class Decoder {
  public:
    virtual ~Decoder() = default;
    // cos, sin: [num_positions, head_dim / 2], float; copied.
    virtual void add_rotary_table(const float* cos, const float* sin) = 0;
    // Layers in order; the weights are packed into memory of its own.
    virtual void add_layer(const RefectoryLayerWeights& weights) = 0;
    // embedding: [vocab_size, hidden_size]; lm_head: the same shape, null where tied.
    virtual void set_ends(const void* embedding, const void* lm_head, const float* final_norm) = 0;
    virtual void copy_blocks(const std::int32_t* sources, const std::int32_t* targets, int count) = 0;
    virtual void step(const RefectoryStep& step) = 0;
};

struct Level {
    const char* name;
    std::unique_ptr<Decoder> (*make_decoder)(const RefectoryDecoderConfig& config);
    // logits: [vocab_size] of one row
    void (*sample)(const float* logits, int vocab_size, const RefectorySamplingRow& row,
                   RefectorySampledToken& token);
};

namespace avx2 {
extern const Level kLevel;
}
namespace avx512 {
extern const Level kLevel;
}

}  // namespace refectory
