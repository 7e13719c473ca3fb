// sampling: one row's token from its logits, by the rules of refectory_kernels/reference/sampling.py
// and the server's runner/{logit_adjustments,sampler,logprobs}.py. It depends on nothing but the row.
//
// No token is ever dropped one by one: each filter raises the smallest value that may still be
// drawn. So a row is read a few times and neither sorted nor copied.

#pragma once

#include "log_probabilities.h"
#include "logit_adjustments.h"
#include "philox.h"

namespace refectory::REFECTORY_LEVEL {

// The smallest float at or above x.
inline float round_up(double x) {
    const auto nearest = static_cast<float>(std::max(x, double{-FLT_MAX}));
    return nearest < x ? std::nextafter(nearest, kInfinity) : nearest;
}

// Order: min_p, top_k, top_p, each on what the one before left.
inline Candidates filter(const LogitRow& logits, const Weights& weights,
                         const RefectorySamplingRow& row) {
    const auto value_of_weight = [&](double weight) {
        return round_up(logits.max + row.temperature * std::log(weight));
    };
    Candidates kept{-kInfinity, logits.size - 1};
    if (row.min_p > 0.0) kept.lowest = value_of_weight(row.min_p);
    if (row.top_k > 0 && row.top_k < logits.size) {
        const float bound = std::max(kept.lowest, top_bound(logits, row.top_k));
        const auto one = [](Vec) { return set1(1.0f); };
        kept.lowest = find_border(logits, bound, row.top_k, one).value;
    }
    if (row.top_p < 1.0) {
        const double total = CandidateSums(logits, weights, kept).total();
        // Tokens of this weight and less do not add up to what top_p drops; half, for rounding.
        const double negligible = (1.0 - row.top_p) * total / logits.size / 2;
        const float bound = std::max(kept.lowest, value_of_weight(negligible));
        const Border border = find_border(logits, bound, row.top_p * total, weights);
        kept = {border.value, nth_equal(logits, border.value, border.num_equal)};
    }
    return kept;
}

// logits: [vocab_size], any values, only read. Ids in the row: below vocab_size.
inline void sample(const float* logits, int vocab_size, const RefectorySamplingRow& row,
                   RefectorySampledToken& token) {
    const LogitRow own = make_logit_row(logits, vocab_size);
    if (!own.is_usable) {
        token.status = kLogitsNotFinite;
        return;
    }
    const LogitRow adjusted = has_adjustments(row) ? adjust(own, row) : own;
    if (!adjusted.is_usable) {
        token.status = kNothingLeft;
        return;
    }
    token.status = kSampled;
    if (row.temperature == 0.0) {
        token.token_id = adjusted.best;
    } else {
        const Weights weights(adjusted, row.temperature);
        const CandidateSums sums(adjusted, weights, filter(adjusted, weights, row));
        token.token_id = sums.draw(philox_uniform(row.seed, row.position));
    }
    if (row.num_logprobs >= 0) tell_log_probabilities(own, row, token);
}

}  // namespace refectory::REFECTORY_LEVEL
