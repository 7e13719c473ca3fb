// What crosses the boundary to Python: plain structs, mirrored field by field in
// refectory_kernels/cpu_abi.py. Pointers are borrowed for the call unless it says otherwise.

#pragma once

#include <cstdint>

extern "C" {

enum RefectoryElement : std::int32_t { kBfloat16 = 0, kFloat32 = 1 };
enum RefectoryActivation : std::int32_t { kSilu = 0, kGeluTanh = 1 };

struct RefectoryDecoderConfig {
    std::int32_t num_layers, hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size;
    std::int32_t vocab_size;
    std::int32_t activation;  // RefectoryActivation
    std::int32_t element;     // RefectoryElement: of weights and KV cache
    std::int32_t num_blocks, block_size;  // of the KV cache; block_size: tokens, a multiple of 16
    std::int32_t max_tokens;              // of one step
    std::int32_t num_positions;           // rows of every rotary table
    std::int32_t num_threads;
    const std::int32_t* cpus;  // [num_threads], where each thread is bound; -1: nowhere
    float norm_eps;
    float attention_scale;
    float attention_soft_cap, logit_soft_cap;  // 0: none
    float embedding_scale;
};

// Matrices are [out_features, in_features] in the config's element; norms and biases are float.
// Null: the family has none.
struct RefectoryLayerWeights {
    const void *q, *k, *v, *o, *gate, *up, *down;
    const float *q_bias, *k_bias, *v_bias, *o_bias, *gate_bias, *up_bias, *down_bias;
    const float *attention_norm, *attention_output_norm;  // [hidden_size]
    const float *mlp_norm, *mlp_output_norm;              // [hidden_size]
    const float *query_norm, *key_norm;                   // [head_dim]
    std::int32_t rotary_table;
    std::int32_t window;  // keys a token sees at most; 0: all before it
};

// How one row's token is chosen; all of it after the model's own logits.
struct RefectorySamplingRow {
    double temperature;  // 0: greedy
    double top_p;        // (0, 1]
    double min_p;        // [0, 1]
    double presence_penalty, frequency_penalty, repetition_penalty;
    std::uint64_t seed;
    std::uint64_t position;    // of the token to be drawn in its sequence
    std::int32_t top_k;        // 0: all
    std::int32_t num_logprobs;  // most probable tokens to tell; -1: no log-probabilities at all
    std::int32_t num_allowed, num_forbidden, num_biases, num_counts;
    const std::int32_t* allowed_ids;    // only these may be chosen, where there are any
    const std::int32_t* forbidden_ids;
    const std::int32_t* bias_ids;
    const double* biases;
    const std::int32_t* count_ids;  // distinct tokens of prompt and output
    const double* counts;           // how often each is in the output
    std::int32_t* top_ids;          // [num_logprobs], written
    double* top_logprobs;           // [num_logprobs], written
};

enum RefectorySampleStatus : std::int32_t {
    kSampled = 0,
    kLogitsNotFinite = 1,  // a NaN or +inf among the model's logits, or nothing but -inf
    kNothingLeft = 2,      // the row's parameters forbid every token
    kOutOfMemory = 3,      // there is no memory for what the row's parameters need
};

struct RefectorySampledToken {
    std::int32_t token_id;
    std::int32_t status;  // RefectorySampleStatus; the other fields count with kSampled only
    std::int32_t rank;    // 1: the most probable; written where log-probabilities are asked for
    double logprob;
};

// One step: sequences lie one after another.
struct RefectoryStep {
    std::int32_t num_tokens, num_sequences, num_sampled;
    std::int32_t block_table_stride;
    const std::int32_t* token_ids;      // [num_tokens]
    const std::int32_t* query_starts;   // [num_sequences + 1]
    const std::int32_t* context_lens;   // [num_sequences], this step's tokens included
    const std::int32_t* block_tables;   // [num_sequences][block_table_stride], block ids
    const std::int32_t* sampled;        // [num_sampled]: sequences whose next token is due
    const RefectorySamplingRow* rows;   // [num_sampled]; null: only the logits
    RefectorySampledToken* tokens;      // [num_sampled], written
    float* logits;                      // [num_sampled][vocab_size], written; may be null
};
}
