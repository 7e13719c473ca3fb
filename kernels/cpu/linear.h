// linear_packed: rows times a packed matrix, with the next operation as an epilogue.
//
// A packed matrix is panels of 2 * kLanes columns; a panel is [k / 2] times two pair units. Each
// output is the sum over k, in order, in one accumulator, whatever number of rows is computed
// together: a row's result never depends on its company.

#pragma once

#include <algorithm>
#include <cstddef>

#include "pair.h"

namespace refectory::REFECTORY_LEVEL {

constexpr int kPanelColumns = 2 * kLanes;
#if defined(REFECTORY_AVX512)
constexpr int kTileRows = 12;  // 24 of 32 registers accumulate
#else
constexpr int kTileRows = 5;  // 10 of 16
#endif

template <class T>
struct Matrix {
    const T* data;       // [num_panels][k / 2][2 units]
    const float* bias;   // [num_panels * kPanelColumns] in the panels' order; or null
    int k;               // input features, even
    int num_panels;

    const T* panel(int p) const { return data + static_cast<std::size_t>(p) * k * kPanelColumns; }
};

// One tile: the sums of Rows rows over one panel. `prefetch`: Lines cache lines of it are asked
// for with every two k.
template <int Rows, int Lines, class T>
inline void multiply_tile(const float* x, std::size_t x_stride, const T* w, int k,
                          const char* prefetch, Vec (&left)[Rows], Vec (&right)[Rows]) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) left[r] = right[r] = zero();
    for (int i = 0; i < k; i += 2) {
        const RowPair a = load_pair(w), b = load_pair(w + kPairSize);
        w += 2 * kPairSize;
        for (int line = 0; line < Lines; line++) _mm_prefetch(prefetch + line * 64, _MM_HINT_T1);
        prefetch += 64 * Lines;
#pragma GCC unroll 16
        for (int r = 0; r < Rows; r++) {
            const Vec v = set1(x[r * x_stride + i]);
            left[r] = fma(v, a.even, left[r]);
            right[r] = fma(v, b.even, right[r]);
        }
#pragma GCC unroll 16
        for (int r = 0; r < Rows; r++) {
            const Vec v = set1(x[r * x_stride + i + 1]);
            left[r] = fma(v, a.odd, left[r]);
            right[r] = fma(v, b.odd, right[r]);
        }
    }
}

template <int Rows, int Lines, class T, class Epilogue>
[[gnu::noinline]] void run_tile(const float* x, std::size_t x_stride, const Matrix<T>& w, int panel,
                                const char* prefetch, int first_row, const Epilogue& epilogue) {
    Vec left[Rows], right[Rows];
    multiply_tile<Rows, Lines>(x + first_row * x_stride, x_stride, w.panel(panel), w.k, prefetch,
                               left, right);
    if (w.bias != nullptr) {
        const Vec a = load(w.bias + panel * kPanelColumns);
        const Vec b = load(w.bias + panel * kPanelColumns + kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; r++) {
            left[r] = left[r] + a;
            right[r] = right[r] + b;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) epilogue(first_row + r, panel, left[r], right[r]);
}

template <int Lines, class T, class Epilogue, int Rows = kTileRows>
void run_tile_of(int rows, const float* x, std::size_t x_stride, const Matrix<T>& w, int panel,
                 const char* prefetch, int first_row, const Epilogue& epilogue) {
    if (rows == Rows) {
        run_tile<Rows, Lines>(x, x_stride, w, panel, prefetch, first_row, epilogue);
    } else if constexpr (Rows > 1) {
        run_tile_of<Lines, T, Epilogue, Rows - 1>(rows, x, x_stride, w, panel, prefetch, first_row,
                                                  epilogue);
    }
}

struct Span {
    int first, last;  // [first, last)
};

// Rows of x ([row][k], x_stride floats apart) times panels of w. `prefetch`: ask for the next
// panel while this one is computed, so that few rows run at the speed of memory.
template <class T, class Epilogue>
void linear(const float* x, std::size_t x_stride, const Matrix<T>& w, Span rows, Span panels,
            const Epilogue& epilogue) {
    const int num_rows = rows.last - rows.first;
    const int num_tiles = (num_rows + kTileRows - 1) / kTileRows;
    // A panel's bytes for every two k, in cache lines.
    constexpr int kPanelLines = 2 * kPanelColumns * sizeof(T) / 64;
    for (int p = panels.first; p < panels.last; p++) {
        const char* next = reinterpret_cast<const char*>(w.panel(p + 1));
        int row = rows.first;
        for (int t = 0; t < num_tiles; t++) {
            const int left = num_tiles - t;
            const int n = (rows.last - row + left - 1) / left;
            if (num_tiles == 1) {
                run_tile_of<kPanelLines>(n, x, x_stride, w, p, next, row, epilogue);
            } else if (t < kPanelLines) {
                const std::size_t share = static_cast<std::size_t>(t) * (w.k / 2) * 64;
                run_tile_of<1>(n, x, x_stride, w, p, next + share, row, epilogue);
            } else {
                run_tile_of<0>(n, x, x_stride, w, p, next, row, epilogue);
            }
            row += n;
        }
    }
}

}  // namespace refectory::REFECTORY_LEVEL
