// paged_attention: softmax(q.k) v over keys and values in blocks, for decode and prefill alike.
//
// One arithmetic for a row, a query of one head: keys are taken in tiles of 64 at absolute
// positions, with an online softmax (Milakov and Gimelshein 2018); every 512 keys are reduced on
// their own and merged in order. So neither the rows computed beside it, nor the chunk that the
// query came in, nor the division of the work over threads changes a bit of the result.

#pragma once

#include <algorithm>
#include <cmath>

#include "kv_cache.h"
#include "linear.h"

namespace refectory::REFECTORY_LEVEL {

constexpr int kTileTokens = 64;
constexpr int kTileBlocks = kTileTokens / kBlockTokens;
constexpr int kTileVectors = kTileTokens / kLanes;
constexpr int kSegmentTokens = 512;
constexpr int kMaxHeadDim = 256;
constexpr float kMasked = -1e30f;  // finite, so that differences of two stay numbers

// Vectors computed at once by so many rows: what fits the registers.
constexpr int tile_width(int rows) {
#if defined(REFECTORY_AVX512)
    return rows <= 5 ? 4 : 2;
#else
    return rows <= 1 ? 4 : 2;
#endif
}

// What some keys contribute to a row: sum of 2^(score - max) and the values so weighted.
struct Partial {
    static constexpr int kHeader = 16;  // floats before the values, for their alignment
    float* data;                        // [kHeader + head_dim]

    float& max() const { return data[0]; }
    float& sum() const { return data[1]; }
    float* values() const { return data + kHeader; }
    void clear(int head_dim) const {
        max() = kMasked;
        sum() = 0.0f;
        std::fill_n(values(), head_dim, 0.0f);
    }
    // Adds what later keys contribute.
    void merge(const Partial& later, int head_dim) const {
        const float highest = std::max(max(), later.max());
        const Vec a = exp2(set1(max() - highest)), b = exp2(set1(later.max() - highest));
        const float weights[2] = {reduce_max(a), reduce_max(b)};
        sum() = sum() * weights[0] + later.sum() * weights[1];
        max() = highest;
        for (int d = 0; d < head_dim; d += kLanes) {
            store(values() + d, fma(load(later.values() + d), b, load(values() + d) * a));
        }
    }
    void write(float* out, int head_dim) const {
        const Vec inverse = set1(1.0f / sum());
        for (int d = 0; d < head_dim; d += kLanes) store(out + d, load(values() + d) * inverse);
    }
};

// Where a sequence's keys and values of one head are.
template <class T>
struct PagedHead {
    const KVCache<T>& cache;
    const std::int32_t* blocks;  // [ceil(num_tokens / kBlockTokens)]
    int head;

    // The tile's blocks; those past the last token repeat the last one.
    void tile(int first_token, int last_token, const T* (&keys)[kTileBlocks]) const {
        const int last_block = (last_token - 1) / kBlockTokens;
        for (int b = 0; b < kTileBlocks; b++) {
            keys[b] = cache.keys(blocks[std::min(first_token / kBlockTokens + b, last_block)], head);
        }
    }
};

// Rows that are computed together: queries of heads that share keys.
template <int Rows>
struct QueryTile {
    alignas(64) float query[Rows][kMaxHeadDim];
    Span sees[Rows];  // tokens whose keys the row sees
};

template <int Rows, int Width, bool Prefetch, class T>
inline void dot_keys(const float (&query)[Rows][kMaxHeadDim], const T* const (&keys)[kTileBlocks],
                     const T* const (&next)[kTileBlocks], int vector, int head_dim,
                     float (&scores)[Rows][kTileTokens]) {
    Vec s[Rows][Width];
    const T* units[Width];
#pragma GCC unroll 16
    for (int w = 0; w < Width; w++) {
        units[w] = keys[(vector + w) / kKeyUnits] + (vector + w) % kKeyUnits * kPairSize;
#pragma GCC unroll 16
        for (int r = 0; r < Rows; r++) s[r][w] = zero();
    }
    for (int d = 0; d < head_dim; d += 2) {
        const int offset = d / 2 * (kKeyUnits * kPairSize);
        if (Prefetch) {
#pragma GCC unroll 16
            for (int b = 0; b < kTileBlocks; b++) _mm_prefetch(next[b] + offset, _MM_HINT_T1);
        }
        RowPair k[Width];
#pragma GCC unroll 16
        for (int w = 0; w < Width; w++) k[w] = load_pair(units[w] + offset);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; r++) {
            const Vec q = set1(query[r][d]);
#pragma GCC unroll 16
            for (int w = 0; w < Width; w++) s[r][w] = fma(q, k[w].even, s[r][w]);
        }
#pragma GCC unroll 16
        for (int r = 0; r < Rows; r++) {
            const Vec q = set1(query[r][d + 1]);
#pragma GCC unroll 16
            for (int w = 0; w < Width; w++) s[r][w] = fma(q, k[w].odd, s[r][w]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 16
        for (int w = 0; w < Width; w++) store(scores[r] + (vector + w) * kLanes, s[r][w]);
    }
}

template <int Rows, int Width, bool Prefetch, class T>
inline void add_values(const float (&weights)[Rows][kTileTokens],
                       const T* const (&keys)[kTileBlocks], const T* const (&next)[kTileBlocks],
                       int num_tokens, int vector, int head_dim, const Partial (&out)[Rows]) {
    Vec a[Rows][Width];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 16
        for (int w = 0; w < Width; w++) a[r][w] = load(out[r].values() + (vector + w) * kLanes);
    }
    const std::size_t values = static_cast<std::size_t>(kBlockTokens) * head_dim;
    for (int t = 0; t < num_tokens; t += 2) {
        const std::size_t offset =
            values + t % kBlockTokens * head_dim + static_cast<std::size_t>(vector) * kPairSize;
        const T* unit = keys[t / kBlockTokens] + offset;
        RowPair v[Width];
#pragma GCC unroll 16
        for (int w = 0; w < Width; w++) {
            v[w] = load_pair(unit + w * kPairSize);
            if (Prefetch) {
                _mm_prefetch(next[t / kBlockTokens] + offset + w * kPairSize, _MM_HINT_T1);
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < Rows; r++) {
            const Vec p = set1(weights[r][t]);
#pragma GCC unroll 16
            for (int w = 0; w < Width; w++) a[r][w] = fma(p, v[w].even, a[r][w]);
        }
        // A slot that no token has filled yet may hold anything, NaN too.
        if (t + 1 == num_tokens) break;
#pragma GCC unroll 16
        for (int r = 0; r < Rows; r++) {
            const Vec p = set1(weights[r][t + 1]);
#pragma GCC unroll 16
            for (int w = 0; w < Width; w++) a[r][w] = fma(p, v[w].odd, a[r][w]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 16
        for (int w = 0; w < Width; w++) store(out[r].values() + (vector + w) * kLanes, a[r][w]);
    }
}

// Turns a row's scores of one tile into weights relative to the row's new maximum.
inline void weigh(float (&scores)[kTileTokens], Span sees, float soft_cap, Vec& sum,
                  const Partial& out, int head_dim) {
    Vec s[kTileVectors];
    const bool is_whole = sees.first <= 0 && sees.last >= kTileTokens;
    Vec highest = set1(kMasked);
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; v++) {
        s[v] = load(scores + v * kLanes);
        if (soft_cap != 0.0f) {
            s[v] = set1(soft_cap * kLog2E) * tanh(s[v] * set1(1.0f / soft_cap));
        }
        if (!is_whole) {
            const Mask seen = lanes_between(sees.first - v * kLanes, sees.last - v * kLanes);
            s[v] = select(seen, s[v], set1(kMasked));
        }
        highest = max(s[v], highest);
    }
    const float tile_max = reduce_max(highest);
    if (tile_max > out.max()) {
        const Vec shrink = exp2(set1(out.max() - tile_max));
        out.max() = tile_max;
        sum = sum * shrink;
        for (int d = 0; d < head_dim; d += kLanes) {
            store(out.values() + d, load(out.values() + d) * shrink);
        }
    }
    const Vec top = set1(out.max());
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; v++) {
        Vec p = exp2(s[v] - top);
        if (!is_whole) {
            const Mask seen = lanes_between(sees.first - v * kLanes, sees.last - v * kLanes);
            p = select(seen, p, zero());
        }
        sum = sum + p;
        store(scores + v * kLanes, p);
    }
}

// What the keys of `tokens`, which lie in one segment, contribute to each row. `after`: blocks
// that will be read next, to ask for them in time.
// soft_cap: 0 or the cap; with 0 the queries are already scaled to base 2.
template <int Rows, bool Prefetch, class T>
[[gnu::noinline]] void attend_segment(const QueryTile<Rows>& tile, const PagedHead<T>& paged,
                                      Span tokens, float soft_cap,
                                      const T* const (&after)[kTileBlocks],
                                      const Partial (&out)[Rows]) {
    constexpr int kWidth = tile_width(Rows);
    const int head_dim = paged.cache.head_dim;
    alignas(64) float scores[Rows][kTileTokens];
    Vec sums[Rows];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
        sums[r] = zero();
        out[r].clear(head_dim);
    }
    for (int first = tokens.first / kTileTokens * kTileTokens; first < tokens.last;
         first += kTileTokens) {
        const T* keys[kTileBlocks];
        const T* next[kTileBlocks];
        paged.tile(first, tokens.last, keys);
        if (first + kTileTokens < tokens.last) {
            paged.tile(first + kTileTokens, tokens.last, next);
        } else {
            std::copy_n(after, kTileBlocks, next);
        }
        dot_keys<Rows, kWidth, Prefetch>(tile.query, keys, next, 0, head_dim, scores);
        for (int v = kWidth; v < kTileVectors; v += kWidth) {
            dot_keys<Rows, kWidth, false>(tile.query, keys, next, v, head_dim, scores);
        }
        for (int r = 0; r < Rows; r++) {
            const Span sees{tile.sees[r].first - first, tile.sees[r].last - first};
            weigh(scores[r], sees, soft_cap, sums[r], out[r], head_dim);
        }
        const int num_tokens = std::min(kTileTokens, tokens.last - first);
        const int num_vectors = head_dim / kLanes;
        int v = 0;
        for (; v + kWidth <= num_vectors; v += kWidth) {
            add_values<Rows, kWidth, Prefetch>(scores, keys, next, num_tokens, v, head_dim, out);
        }
        for (; v < num_vectors; v += 2) {
            add_values<Rows, 2, Prefetch>(scores, keys, next, num_tokens, v, head_dim, out);
        }
    }
    for (int r = 0; r < Rows; r++) out[r].sum() = reduce_add(sums[r]);
}

}  // namespace refectory::REFECTORY_LEVEL
