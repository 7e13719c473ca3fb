// One row of logits, read in blocks, and its largest value.

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>

#include "lanes.h"

namespace refectory::REFECTORY_LEVEL {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kBlock = 512;  // values

// kBlock values, those that are missing replaced by `padding`.
class Block {
  public:
    Block(const float* values, int size, float padding) : data_(values) {
        if (size >= kBlock) return;
        std::memcpy(padded_, values, static_cast<std::size_t>(size) * sizeof(float));
        for (int i = size; i < kBlock; i++) padded_[i] = padding;
        data_ = padded_;
    }
    Block(const Block&) = delete;
    float operator[](int i) const { return data_[i]; }
    Vec vector(int i) const { return load(data_ + i); }

  private:
    const float* data_;
    float padded_[kBlock];
};

// Memory of one thread, kept from row to row.
template <class T>
class Scratch {
  public:
    T* reserve(std::size_t size) {
        if (size > size_) {
            data_.reset(new T[size]);
            size_ = size;
        }
        return data_.get();
    }

  private:
    std::unique_ptr<T[]> data_;
    std::size_t size_ = 0;
};

struct LogitRow {
    const float* values;  // [size], only read
    int size;
    float max;
    int best;        // the smallest id of a largest value
    bool is_usable;  // neither NaN nor +inf, and not all -inf; if not, the rest is void
};

inline LogitRow make_logit_row(const float* values, int size) {
    constexpr int kStep = 4;  // vectors
    float max = -kInfinity;
    int best_block = 0;
    Mask nans = unordered(zero(), zero());
    for (int first = 0; first < size; first += kBlock) {
        const Block block(values + first, size - first, -kInfinity);
        Vec highest[kStep];
#pragma GCC unroll 4
        for (int v = 0; v < kStep; v++) highest[v] = block.vector(v * kLanes);
        nans = either(nans, either(unordered(highest[0], highest[1]),
                                   unordered(highest[2], highest[3])));
        for (int i = kStep * kLanes; i < kBlock; i += kStep * kLanes) {
            Vec x[kStep];
#pragma GCC unroll 4
            for (int v = 0; v < kStep; v++) {
                x[v] = block.vector(i + v * kLanes);
                highest[v] = REFECTORY_LEVEL::max(x[v], highest[v]);
            }
            nans = either(nans, either(unordered(x[0], x[1]), unordered(x[2], x[3])));
        }
        const float highest_of_block =
            reduce_max(REFECTORY_LEVEL::max(REFECTORY_LEVEL::max(highest[0], highest[1]),
                                            REFECTORY_LEVEL::max(highest[2], highest[3])));
        if (highest_of_block > max) {
            max = highest_of_block;
            best_block = first;
        }
    }
    if (bits(nans) != 0 || !std::isfinite(max)) return {values, size, max, 0, false};
    int best = best_block;
    while (values[best] != max) best++;
    return {values, size, max, best, true};
}

}  // namespace refectory::REFECTORY_LEVEL
