// A row of logits after its masks, bias and penalties, in the order of the server's
// runner/logit_adjustments.py.

#pragma once

#include "abi.h"
#include "logit_row.h"

namespace refectory::REFECTORY_LEVEL {

inline bool has_adjustments(const RefectorySamplingRow& row) {
    return row.num_allowed > 0 || row.num_forbidden > 0 || row.num_biases > 0 || row.num_counts > 0;
}

inline double penalised(double value, double count, const RefectorySamplingRow& row) {
    value = value > 0.0 ? value / row.repetition_penalty : value * row.repetition_penalty;
    value -= row.frequency_penalty * count;
    return count > 0.0 ? value - row.presence_penalty : value;
}

// Adjusted in double; then each value's distance to the largest is rounded to float, 0 for the
// largest: what matters to probabilities keeps its precision. The result is not usable where no
// token is left; it lives until this thread's next call.
inline LogitRow adjust(const LogitRow& logits, const RefectorySamplingRow& row) {
    thread_local Scratch<float> scratch;
    thread_local Scratch<double> changed_scratch;
    const int size = logits.size;
    float* values = scratch.reserve(size);
    double* changed = changed_scratch.reserve(size);  // void but for ids of a bias or a count
    if (row.num_allowed > 0) {
        std::fill_n(values, size, -kInfinity);
        for (int i = 0; i < row.num_allowed; i++) {
            values[row.allowed_ids[i]] = logits.values[row.allowed_ids[i]];
        }
    } else {
        std::copy_n(logits.values, size, values);
    }
    for (int i = 0; i < row.num_forbidden; i++) values[row.forbidden_ids[i]] = -kInfinity;

    for (int i = 0; i < row.num_biases; i++) changed[row.bias_ids[i]] = values[row.bias_ids[i]];
    for (int i = 0; i < row.num_counts; i++) changed[row.count_ids[i]] = values[row.count_ids[i]];
    for (int i = 0; i < row.num_biases; i++) changed[row.bias_ids[i]] += row.biases[i];
    for (int i = 0; i < row.num_counts; i++) {
        double& value = changed[row.count_ids[i]];
        value = penalised(value, row.counts[i], row);
    }

    double max = -std::numeric_limits<double>::infinity();
    const auto for_changed = [&](const auto& take) {
        for (int i = 0; i < row.num_biases; i++) take(row.bias_ids[i]);
        for (int i = 0; i < row.num_counts; i++) take(row.count_ids[i]);
    };
    for_changed([&](int id) {
        values[id] = -kInfinity;
        max = std::max(max, changed[id]);
    });
    max = std::max(max, double{make_logit_row(values, size).max});
    for (int i = 0; i < size; i++) values[i] = static_cast<float>(values[i] - max);
    for_changed([&](int id) { values[id] = static_cast<float>(changed[id] - max); });
    return make_logit_row(values, size);  // with an infinite max, NaNs
}

}  // namespace refectory::REFECTORY_LEVEL
