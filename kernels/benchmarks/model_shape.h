// The models whose steps are measured, and what a part of a step costs at least.

#pragma once

#include <string_view>

#include "benchmark.h"

namespace refectory::benchmark {

// Sequences of `context` tokens each, of which the last `num_new` are computed.
struct Batch {
    int num_sequences, context, num_new;

    int num_tokens() const { return num_sequences * num_new; }
};

// A tied decoder with weights, keys and values in bfloat16.
struct ModelShape {
    const char* name;
    int num_layers, hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, vocab_size;

    // Of all layers; nothing for parts that are neither matrices nor attention.
    Cost cost(std::string_view part, const Batch& batch) const {
        const double rows = batch.num_tokens(), hidden = hidden_size, inner = intermediate_size;
        const double q_size = num_heads * head_dim, kv_size = num_kv_heads * head_dim;
        const auto matrix = [](double num_rows, double k, double n) {
            return Cost{2 * num_rows * k * n, 2 * k * n};
        };
        Cost layer;
        if (part == "qkv") layer = matrix(rows, hidden, q_size + 2 * kv_size);
        if (part == "o") layer = matrix(rows, q_size, hidden);
        if (part == "gate_up") layer = matrix(rows, hidden, 2 * inner);
        if (part == "down") layer = matrix(rows, inner, hidden);
        if (part == "logits") return matrix(batch.num_sequences, hidden, vocab_size);
        if (part == "attention") {
            const double num_keys = batch.context - (batch.num_new - 1) / 2.0;  // a row's, mean
            layer.flops = 4 * rows * num_keys * q_size;
            layer.bytes = 4 * kv_size * batch.num_sequences * batch.context;
        }
        return {num_layers * layer.flops, num_layers * layer.bytes};
    }
    Cost step_cost(const Batch& batch) const {
        Cost sum;
        for (const auto* part : {"qkv", "attention", "o", "gate_up", "down", "logits"}) {
            sum = sum + cost(part, batch);
        }
        return sum;
    }
};

constexpr ModelShape kSmolLM2{"SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152};
constexpr ModelShape kLlama1B{"Llama-3.2-1B", 16, 2048, 32, 8, 64, 8192, 128256};

}  // namespace refectory::benchmark
