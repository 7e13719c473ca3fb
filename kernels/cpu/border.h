// Where a row's largest values reach a given mass: the border of top_k, top_p and top logprobs.
//
// Radix selection on the values' bits: a histogram of mass over the leading digits of the range,
// then over the next ones within the digit that holds the border. Nothing is sorted.

#pragma once

#include "logit_row.h"

namespace refectory::REFECTORY_LEVEL {

// Calls take(id) for every value from `low` to `high`, in the order of ids.
template <class Take>
inline void for_ids_between(const LogitRow& row, float low, float high, const Take& take) {
    for (int first = 0; first < row.size; first += kBlock) {
        const Block block(row.values + first, row.size - first, kNaN);
        for (int i = 0; i < kBlock; i += kLanes) {
            std::uint32_t lanes = bits_between(block.vector(i), set1(low), set1(high));
            for (; lanes != 0; lanes &= lanes - 1) take(first + i + std::countr_zero(lanes));
        }
    }
}

// The id of the n-th value equal to `value`, n from 1; of the last one where there are fewer.
inline int nth_equal(const LogitRow& row, float value, int n) {
    int last = 0;
    for_ids_between(row, value, value, [&](int id) {
        if (n-- > 0) last = id;
    });
    return last;
}

// Ordered as the values are; 0 and -0 are one. value: not NaN
inline std::int64_t order_of(float value) {
    const auto magnitude = std::bit_cast<std::int32_t>(std::abs(value));
    return std::signbit(value) ? -magnitude : magnitude;
}
inline float value_of(std::int64_t order) {
    const float magnitude = std::bit_cast<float>(static_cast<std::int32_t>(std::abs(order)));
    return order < 0 ? -magnitude : magnitude;
}

struct Border {
    float value;
    int num_equal;  // values equal to the border that are needed, at least 1
};

// Mass by digit of the values from order `low` to order `high`.
class Histogram {
  public:
    static constexpr int kDigitBits = 11;

    template <class Mass>
    Histogram(const LogitRow& row, std::int64_t low, std::int64_t high, const Mass& mass)
        : shift_(std::max(0, num_bits(high - low) - kDigitBits)) {
        const Vec lowest = set1(value_of(low)), highest = set1(value_of(high));
        for (int first = 0; first < row.size; first += kBlock) {
            const Block block(row.values + first, row.size - first, kNaN);
            float kept[kBlock + kLanes];
            int num_kept = 0;
            for (int i = 0; i < kBlock; i += kLanes) {
                const Vec values = block.vector(i);
                const std::uint32_t lanes = bits_between(values, lowest, highest);
                if (lanes == 0) continue;
                store_compressed(kept + num_kept, values, lanes);
                num_kept += std::popcount(lanes);
            }
            for (int i = 0; i < num_kept; i += kLanes) {
                std::int32_t digits[kLanes];
                float masses[kLanes];
                const Vec values = load(kept + i);
                store_digits(digits, values, static_cast<std::int32_t>(low), shift_);
                store(masses, mass(values));
                const int end = std::min(kLanes, num_kept - i);
                for (int lane = 0; lane < end; lane++) masses_[digits[lane]] += masses[lane];
            }
        }
    }
    double operator[](std::int64_t digit) const { return masses_[digit]; }
    int shift() const { return shift_; }

  private:
    static int num_bits(std::int64_t range) {
        return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(range)));
    }

    int shift_;
    double masses_[1 << kDigitBits] = {};
};

// The largest values whose masses reach `target`; values below `lowest` have no part in it.
// mass: Vec of values -> Vec of masses, at least 0; target: above 0
template <class Mass>
inline Border find_border(const LogitRow& row, float lowest, double target, const Mass& mass) {
    std::int64_t low = order_of(lowest), high = order_of(row.max);
    double above = 0.0;  // mass of the values above `high`, less than the target
    for (int shift = 1; shift > 0;) {
        const Histogram histogram(row, low, high, mass);
        shift = histogram.shift();
        double reached = above;
        std::int64_t border = 0;
        for (std::int64_t digit = (high - low) >> shift; digit >= 0 && reached < target; digit--) {
            if (histogram[digit] == 0.0) continue;
            above = reached;
            reached += histogram[digit];
            border = digit;
        }
        low += border << shift;
        high = std::min(high, low + (std::int64_t{1} << shift) - 1);
    }
    const float value = value_of(low);
    float masses[kLanes];
    store(masses, mass(set1(value)));
    const double num_equal = std::ceil((target - above) / masses[0]);
    return {value, static_cast<int>(std::clamp(num_equal, 1.0, double(row.size)))};
}

// A value that at least `count` values reach, and not many more where the row has no order.
inline float top_bound(const LogitRow& row, int count) {
    const int num_blocks = (row.size + kBlock - 1) / kBlock;
    const int num_groups = num_blocks * kGroup;
    if (count > num_groups) return -kInfinity;
    thread_local Scratch<float> scratch;
    float* maxima = scratch.reserve(num_groups);
    for (int b = 0; b < num_blocks; b++) {
        const Block block(row.values + b * kBlock, row.size - b * kBlock, -kInfinity);
        Vec highest[kGroupVectors];
        for (int v = 0; v < kGroupVectors; v++) highest[v] = block.vector(v * kLanes);
        for (int i = kGroup; i < kBlock; i += kGroup) {
#pragma GCC unroll 2
            for (int v = 0; v < kGroupVectors; v++) {
                highest[v] = max(block.vector(i + v * kLanes), highest[v]);
            }
        }
        for (int v = 0; v < kGroupVectors; v++) {
            store(maxima + b * kGroup + v * kLanes, highest[v]);
        }
    }
    const auto is_larger = [](float a, float b) { return a > b; };
    std::nth_element(maxima, maxima + count - 1, maxima + num_groups, is_larger);
    return maxima[count - 1];
}

}  // namespace refectory::REFECTORY_LEVEL
