// The layout of a layer's KV cache, and kv_cache_store.
//
// A block is 16 tokens of one KV head: keys as [head_dim / 2] rows of units whose lanes are
// tokens, then values as [8 token pairs] rows of units whose lanes are dimensions. So neither
// q.k nor p.v needs a sum across lanes.

#pragma once

#include <cstddef>
#include <cstdint>

#include "pair.h"

namespace refectory::REFECTORY_LEVEL {

constexpr int kBlockTokens = 16;
constexpr int kKeyUnits = kBlockTokens / kLanes;  // of one pair of dimensions

template <class T>
struct KVCache {
    T* data;           // [num_blocks][num_kv_heads][2 * kBlockTokens * head_dim]
    int num_kv_heads;
    int head_dim;      // padded, a multiple of 32

    std::size_t block_size() const { return 2 * kBlockTokens * static_cast<std::size_t>(head_dim); }
    T* keys(int block, int head) const {
        return data + (static_cast<std::size_t>(block) * num_kv_heads + head) * block_size();
    }
    T* values(int block, int head) const { return keys(block, head) + kBlockTokens * head_dim; }
};

// key, value: [head_dim] of one head of one token, which is token `offset` of the block.
template <class T>
void kv_cache_store(const KVCache<T>& cache, int block, int head, int offset, const float* key,
                    const float* value) {
    T* keys = cache.keys(block, head) + offset / kLanes * kPairSize;
    const int lane = offset % kLanes;
    for (int d = 0; d < cache.head_dim; d += 2, keys += kKeyUnits * kPairSize) {
        keys[pair_index<T>(lane, 0)] = from_float<T>(key[d]);
        keys[pair_index<T>(lane, 1)] = from_float<T>(key[d + 1]);
    }
    T* values = cache.values(block, head) + offset / 2 * (2 * cache.head_dim);
    const int row = offset % 2;
    for (int d = 0; d < cache.head_dim; d += kLanes, values += kPairSize) {
        for (int i = 0; i < kLanes; i++) {
            values[pair_index<T>(i, row)] = from_float<T>(value[d + i]);
        }
    }
}

}  // namespace refectory::REFECTORY_LEVEL
