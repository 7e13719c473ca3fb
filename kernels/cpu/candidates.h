// The tokens that may still be drawn, their weights, and the inverse CDF.
//
// "Weights" are probabilities relative to the row's most probable token, which has 1.

#pragma once

#include <cfloat>
#include <numbers>

#include "logit_row.h"

namespace refectory::REFECTORY_LEVEL {

// exp((value - max) / temperature), to a few units in the last place of the exponent.
class Weights {
  public:
    Weights(const LogitRow& row, double temperature)
        : max_(set1(row.max)),
          // Within the normal numbers, so that neither 0 * inf nor -inf * 0 comes up.
          scale_(set1(static_cast<float>(std::clamp(std::numbers::log2e / temperature,
                                                    double{FLT_MIN}, double{FLT_MAX})))) {}
    Vec operator()(Vec values) const { return exp2((values - max_) * scale_); }

  private:
    Vec max_, scale_;
};

// The values above `lowest`, and of those equal to it the ones up to id `last_of_lowest`.
struct Candidates {
    float lowest;
    int last_of_lowest;
};

// The candidates' sums of weights, block by block in the order of ids.
class CandidateSums {
  public:
    CandidateSums(const LogitRow& row, const Weights& weights, const Candidates& candidates)
        : row_(row),
          weights_(weights),
          candidates_(candidates),
          num_first_blocks_(candidates.last_of_lowest / kBlock + 1) {
        const int num_after = row.size - candidates.last_of_lowest - 1;
        num_blocks_ = num_first_blocks_ + (num_after + kBlock - 1) / kBlock;
        thread_local Scratch<double> scratch;
        sums_ = scratch.reserve(num_blocks_);
        for (int b = 0; b < num_blocks_; b++) total_ += sums_[b] = sum(part(b));
    }

    double total() const { return total_; }

    // The first token at which the running sum of weights exceeds uniform * total.
    int draw(double uniform) const {
        const double target = uniform * total_;
        double reached = 0.0;
        int b = 0;
        while (reached + sums_[b] <= target) reached += sums_[b++];
        return draw_within(part(b), target - reached);
    }

  private:
    // Blocks begin anew after last_of_lowest: each has one smallest value that counts.
    struct Part {
        int first, size;
        float lowest;
    };

    Part part(int b) const {
        const int after = candidates_.last_of_lowest + 1;
        if (b < num_first_blocks_) return {b * kBlock, after - b * kBlock, candidates_.lowest};
        const int first = after + (b - num_first_blocks_) * kBlock;
        return {first, row_.size - first, std::nextafter(candidates_.lowest, kInfinity)};
    }

    double sum(const Part& part) const {
        const Block block(row_.values + part.first, part.size, kNaN);
        const Vec lowest = set1(part.lowest);
        GroupSums sums;
        for (int i = 0; i < kBlock; i += kGroup) {
#pragma GCC unroll 2
            for (int v = 0; v < kGroupVectors; v++) {
                const Vec values = block.vector(i + v * kLanes);
                const Mask counts = at_least(values, lowest);
                if (bits(counts) != 0) sums.add(v, select(counts, weights_(values), zero()));
            }
        }
        return sums.total();
    }

    int draw_within(const Part& part, double target) const {
        const Block block(row_.values + part.first, part.size, kNaN);
        double reached = 0.0;
        int last = part.first;
        for (int i = 0; i < kBlock; i += kLanes) {
            float weights[kLanes];
            store(weights, weights_(block.vector(i)));
            for (int lane = 0; lane < kLanes; lane++) {
                // Not true of padding.
                const bool counts = block[i + lane] >= part.lowest && weights[lane] > 0.0f;
                if (!counts) continue;
                last = part.first + i + lane;
                reached += weights[lane];
                if (reached > target) return last;
            }
        }
        return last;  // the sums of block and token differ in rounding
    }

    const LogitRow& row_;
    const Weights& weights_;
    Candidates candidates_;
    int num_first_blocks_, num_blocks_;
    double* sums_;  // [num_blocks_]
    double total_ = 0.0;
};

}  // namespace refectory::REFECTORY_LEVEL
