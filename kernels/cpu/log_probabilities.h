// Log-probabilities and ranks by the model's own logits: of a chosen token, and of the largest.

#pragma once

#include "abi.h"
#include "border.h"
#include "candidates.h"

namespace refectory::REFECTORY_LEVEL {

inline int count_above(const LogitRow& row, float value) {
    int count = 0;
    for (int first = 0; first < row.size; first += kBlock) {
        const Block block(row.values + first, row.size - first, kNaN);
        for (int i = 0; i < kBlock; i += kLanes) {
            count += std::popcount(bits(less(set1(value), block.vector(i))));
        }
    }
    return count;
}

// The ids of the `count` largest values, largest first, of equal ones the smallest ids.
// count: 1 to row.size
inline void find_top(const LogitRow& row, int count, std::int32_t* ids) {
    const auto one = [](Vec) { return set1(1.0f); };
    const Border border = find_border(row, top_bound(row, count), count, one);
    const int last = nth_equal(row, border.value, border.num_equal);
    std::int32_t* end = ids;
    for_ids_between(row, border.value, row.max, [&](int id) {
        if (row.values[id] > border.value || id <= last) *end++ = id;
    });
    std::sort(ids, end, [&row](std::int32_t a, std::int32_t b) {
        return row.values[a] != row.values[b] ? row.values[a] > row.values[b] : a < b;
    });
}

// Writes the token's logprob and rank, and the row's top_ids and top_logprobs, as many as there
// are tokens.
inline void tell_log_probabilities(const LogitRow& logits, const RefectorySamplingRow& row,
                                   RefectorySampledToken& token) {
    const Weights weights(logits, 1.0);
    const CandidateSums sums(logits, weights, {-kInfinity, logits.size - 1});
    const double log_total = std::log(sums.total());
    const auto logprob = [&](int id) {
        return double{logits.values[id]} - logits.max - log_total;
    };
    token.logprob = logprob(token.token_id);
    token.rank = count_above(logits, logits.values[token.token_id]) + 1;
    const int num_top = std::min(row.num_logprobs, logits.size);
    if (num_top > 0) find_top(logits, num_top, row.top_ids);
    for (int i = 0; i < num_top; i++) row.top_logprobs[i] = logprob(row.top_ids[i]);
}

}  // namespace refectory::REFECTORY_LEVEL
