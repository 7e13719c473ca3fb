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

// Memory for a matrix; its panels are still zeros.
template <class T>
Matrix<T> allocate_matrix(Arena& arena, int num_columns, int k, bool has_bias) {
    // As many as rows are padded to: a column that is never written could keep an old NaN.
    const int num_panels = round_up(num_columns, 32) / kPanelColumns;
    const std::size_t size = static_cast<std::size_t>(num_panels) * kPanelColumns;
    return {arena.allocate<T>(size * k), has_bias ? arena.allocate<float>(size) : nullptr, k,
            num_panels};
}

// Fills some panels of a matrix.
// features: for each packed input feature the source's, or kZeros; [matrix.k]
template <class T>
void pack_panels(const Matrix<T>& matrix, Span panels, const std::vector<Column<T>>& columns,
                 const std::vector<int>& features) {
    for (int p = panels.first; p < panels.last; p++) {
        const std::size_t first = static_cast<std::size_t>(p) * kPanelColumns;
        // Below 0 in a panel that is nothing but padding.
        const int num_columns =
            std::min(kPanelColumns, static_cast<int>(columns.size()) - static_cast<int>(first));
        T* const panel = const_cast<T*>(matrix.panel(p));
        for (int c = 0; c < num_columns; c++) {  // the panel stays in the cache meanwhile
            const T* const row = columns[first + c].row;
            if (row == nullptr) continue;
            T* const even = panel + c / kLanes * kPairSize + pair_index<T>(c % kLanes, 0);
            T* const odd = panel + c / kLanes * kPairSize + pair_index<T>(c % kLanes, 1);
            for (int i = 0; i < matrix.k; i += 2) {
                const std::size_t at = static_cast<std::size_t>(i) * kPairSize;
                if (features[i] != kZeros) even[at] = row[features[i]];
                if (features[i + 1] != kZeros) odd[at] = row[features[i + 1]];
            }
        }
        if (matrix.bias == nullptr) continue;
        for (int c = 0; c < num_columns; c++) {
            const_cast<float*>(matrix.bias)[first + c] = columns[first + c].bias;
        }
    }
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
