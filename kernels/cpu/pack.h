// Row-major matrices into panels, once at load. Rows and columns may be moved and zeros put in
// between, so that kernels never see an odd size.

#pragma once

#include <vector>

#include "linear.h"
#include "memory.h"

namespace refectory::REFECTORY_LEVEL {

constexpr int kZeros = -1;  // in an index list: nothing of the source

inline int round_up(int x, int multiple) { return (x + multiple - 1) / multiple * multiple; }

// One output column of a packed matrix: a row of the source, or zeros.
template <class T>
struct Column {
    const T* row = nullptr;  // [in_features]
    float bias = 0.0f;
};

// features: for each packed input feature the source's, or kZeros; an even number of them.
template <class T>
Matrix<T> pack(Arena& arena, const std::vector<Column<T>>& columns,
               const std::vector<int>& features, bool has_bias) {
    const int k = static_cast<int>(features.size());
    // As many as rows are padded to: a column that is never written could keep an old NaN.
    const int num_panels = round_up(static_cast<int>(columns.size()), 32) / kPanelColumns;
    const std::size_t num_columns = static_cast<std::size_t>(num_panels) * kPanelColumns;
    T* const panels = arena.allocate<T>(num_columns * k);
    float* const biases = has_bias ? arena.allocate<float>(num_columns) : nullptr;
    for (std::size_t c = 0; c < columns.size(); c++) {
        const std::size_t panel = c / kPanelColumns, column = c % kPanelColumns;
        if (has_bias) biases[c] = columns[c].bias;
        if (columns[c].row == nullptr) continue;
        T* unit = panels + panel * kPanelColumns * k + column / kLanes * kPairSize;
        const int lane = static_cast<int>(column % kLanes);
        for (int i = 0; i < k; i++) {
            if (features[i] == kZeros) continue;
            unit[i / 2 * (2 * kPairSize) + pair_index<T>(lane, i % 2)] = columns[c].row[features[i]];
        }
    }
    return {panels, biases, k, num_panels};
}

// Packed column c of input features, as floats: an embedding's row out of a tied lm_head.
template <class T>
void unpack_column(const Matrix<T>& matrix, int c, float scale, float* out) {
    const T* unit = matrix.panel(c / kPanelColumns) + c % kPanelColumns / kLanes * kPairSize;
    const int lane = c % kLanes;
    for (int i = 0; i < matrix.k; i += 2, unit += 2 * kPairSize) {
        out[i] = to_float(unit[pair_index<T>(lane, 0)]) * scale;
        out[i + 1] = to_float(unit[pair_index<T>(lane, 1)]) * scale;
    }
}

inline std::vector<int> padded_features(int size, int padded) {
    std::vector<int> features(static_cast<std::size_t>(padded), kZeros);
    for (int i = 0; i < size; i++) features[static_cast<std::size_t>(i)] = i;
    return features;
}

// A head's dimensions with each rotary half padded to whole vectors of either level; [2 * half].
inline std::vector<int> head_features(int head_dim) {
    const int half = round_up(head_dim / 2, 16);
    std::vector<int> features(static_cast<std::size_t>(2 * half), kZeros);
    for (int i = 0; i < head_dim / 2; i++) {
        features[static_cast<std::size_t>(i)] = i;
        features[static_cast<std::size_t>(half + i)] = head_dim / 2 + i;
    }
    return features;
}

}  // namespace refectory::REFECTORY_LEVEL
