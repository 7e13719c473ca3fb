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

// Asking for the panel that is read next while a tile is computed. A lone tile asks for Lines of
// its cache lines with every two k, in four places at once: one place alone does not reach the
// memory's speed.
template <int Lines>
struct FourStreams {
    const char* start;
    std::size_t quarter;  // bytes

    void ask(int step) const {
        constexpr int kTurns = 4 / Lines;
        const char* p = start + step % kTurns * quarter + step / kTurns * 64;
#pragma GCC unroll 4
        for (int line = 0; line < Lines; line++, p += kTurns * quarter) {
            _mm_prefetch(p, _MM_HINT_T1);
        }
    }
};

// Several tiles share the work, so that no more is under way at once than the core can hold.
struct Spread {
    const char* start;
    std::size_t stride;  // bytes, at most a cache line

    void ask(int step) const { _mm_prefetch(start + step * stride, _MM_HINT_T1); }
};

// One tile: the sums of Rows rows over one panel.
template <int Rows, class T, class Prefetch>
inline void multiply_tile(const float* x, std::size_t x_stride, const T* w, int k,
                          const Prefetch& prefetch, Vec (&left)[Rows], Vec (&right)[Rows]) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) left[r] = right[r] = zero();
    for (int i = 0; i < k; i += 2) {
        const RowPair a = load_pair(w), b = load_pair(w + kPairSize);
        w += 2 * kPairSize;
        prefetch.ask(i / 2);
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

template <int Rows, class T, class Prefetch, class Epilogue>
[[gnu::noinline]] void run_tile(const float* x, std::size_t x_stride, const Matrix<T>& w, int panel,
                                const Prefetch& prefetch, int first_row,
                                const Epilogue& epilogue) {
    Vec left[Rows], right[Rows];
    multiply_tile(x + first_row * x_stride, x_stride, w.panel(panel), w.k, prefetch, left, right);
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

template <int Rows = kTileRows, class T, class Prefetch, class Epilogue>
void run_tile_of(int rows, const float* x, std::size_t x_stride, const Matrix<T>& w, int panel,
                 const Prefetch& prefetch, int first_row, const Epilogue& epilogue) {
    if (rows == Rows) {
        run_tile<Rows>(x, x_stride, w, panel, prefetch, first_row, epilogue);
    } else if constexpr (Rows > 1) {
        run_tile_of<Rows - 1>(rows, x, x_stride, w, panel, prefetch, first_row, epilogue);
    }
}

struct Span {
    int first, last;  // [first, last)
};

// Rows of x ([row][k], x_stride floats apart) times one panel.
// next: the panel that the caller reads after this one
template <class T, class Epilogue>
void linear(const float* x, std::size_t x_stride, const Matrix<T>& w, Span rows, int panel,
            const T* next, const Epilogue& epilogue) {
    const int num_rows = rows.last - rows.first;
    const int num_tiles = (num_rows + kTileRows - 1) / kTileRows;
    constexpr std::size_t kStepBytes = 2 * kPanelColumns * sizeof(T);  // of a panel, for two k
    const std::size_t panel_bytes = kStepBytes * (w.k / 2);
    const char* const start = reinterpret_cast<const char*>(next);
    if (num_tiles == 1) {
        const FourStreams<kStepBytes / 64> prefetch{start, panel_bytes / 4};
        run_tile_of(num_rows, x, x_stride, w, panel, prefetch, rows.first, epilogue);
        return;
    }
    int row = rows.first;
    for (int t = 0; t < num_tiles; t++) {
        const int left = num_tiles - t;
        const int n = (rows.last - row + left - 1) / left;
        const Spread prefetch{start + panel_bytes * t / num_tiles, kStepBytes / num_tiles};
        run_tile_of(n, x, x_stride, w, panel, prefetch, row, epilogue);
        row += n;
    }
}

}  // namespace refectory::REFECTORY_LEVEL
