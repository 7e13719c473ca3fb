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

// Lines of memory to ask for while a tile is computed, in Streams places at once: one place alone
// does not reach the memory's speed. Each stream is `stream_size` bytes from the next.
template <int Streams>
struct Prefetch {
    const char* start;
    std::size_t stream_size;

    void ask(std::size_t offset) const {
#pragma GCC unroll 8
        for (int s = 0; s < Streams; s++) {
            _mm_prefetch(start + s * stream_size + offset, _MM_HINT_T1);
        }
    }
};

// One tile: the sums of Rows rows over one panel.
template <int Rows, int Streams, class T>
inline void multiply_tile(const float* x, std::size_t x_stride, const T* w, int k,
                          const Prefetch<Streams>& prefetch, Vec (&left)[Rows],
                          Vec (&right)[Rows]) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) left[r] = right[r] = zero();
    std::size_t offset = 0;
    for (int i = 0; i < k; i += 2) {
        const RowPair a = load_pair(w), b = load_pair(w + kPairSize);
        w += 2 * kPairSize;
        prefetch.ask(offset);
        offset += 64;
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

// w: the panel's columns, as they lie in the matrix or widened to floats
template <int Rows, int Streams, class T, class M, class Epilogue>
[[gnu::noinline]] void run_tile(const float* x, std::size_t x_stride, const T* w,
                                const Matrix<M>& matrix, int panel,
                                const Prefetch<Streams>& prefetch, int first_row,
                                const Epilogue& epilogue) {
    Vec left[Rows], right[Rows];
    multiply_tile<Rows, Streams>(x + first_row * x_stride, x_stride, w, matrix.k, prefetch, left,
                                 right);
    if (matrix.bias != nullptr) {
        const Vec a = load(matrix.bias + panel * kPanelColumns);
        const Vec b = load(matrix.bias + panel * kPanelColumns + kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; r++) {
            left[r] = left[r] + a;
            right[r] = right[r] + b;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) epilogue(first_row + r, panel, left[r], right[r]);
}

struct Span {
    int first, last;  // [first, last)
};

template <int Streams, class T, class M, class Epilogue, int Rows = kTileRows>
void run_tile_of(int rows, const float* x, std::size_t x_stride, const T* w,
                 const Matrix<M>& matrix, int panel, const Prefetch<Streams>& prefetch,
                 int first_row, const Epilogue& epilogue) {
    if (rows == Rows) {
        run_tile<Rows, Streams>(x, x_stride, w, matrix, panel, prefetch, first_row, epilogue);
    } else if constexpr (Rows > 1) {
        run_tile_of<Streams, T, M, Epilogue, Rows - 1>(rows, x, x_stride, w, matrix, panel,
                                                       prefetch, first_row, epilogue);
    }
}

// From so many tiles on a panel is widened to floats first, once for all of them.
constexpr int kManyTiles = 4;
constexpr int kMaxWidenedK = 4096;  // beyond, the floats would leave the L2 cache

template <class T>
const float* widen_panel(const T* panel, int k, float* widened) {
    float* out = widened;
    for (int i = 0; i < k * kPanelColumns; i += kPairSize, out += kPairSize) {
        const RowPair pair = load_pair(panel + i);
        store(out, pair.even);
        store(out + kLanes, pair.odd);
    }
    return widened;
}

// Rows of x ([row][k], x_stride floats apart) times one panel.
// next: the panel that the caller reads after this one, asked for meanwhile
// widened: [k * kPanelColumns], scratch
template <class T, class Epilogue>
void linear(const float* x, std::size_t x_stride, const Matrix<T>& matrix, Span rows, int panel,
            const T* next, float* widened, const Epilogue& epilogue) {
    const int num_rows = rows.last - rows.first;
    const int num_tiles = (num_rows + kTileRows - 1) / kTileRows;
    // Of a panel's lines a tile can ask for one with every two k.
    constexpr int kShares = 2 * kPanelColumns * sizeof(T) / 64;
    const std::size_t share = static_cast<std::size_t>(matrix.k / 2) * 64;
    const char* const lines = reinterpret_cast<const char*>(next);
    const auto run_tiles = [&](const auto* w) {
        int row = rows.first;
        for (int t = 0; t < num_tiles; t++) {
            const int left = num_tiles - t;
            const int n = (rows.last - row + left - 1) / left;
            if (num_tiles == 1) {
                run_tile_of(n, x, x_stride, w, matrix, panel, Prefetch<kShares>{lines, share}, row,
                            epilogue);
            } else if (t < kShares) {
                run_tile_of(n, x, x_stride, w, matrix, panel,
                            Prefetch<1>{lines + static_cast<std::size_t>(t) * share, 0}, row,
                            epilogue);
            } else {
                run_tile_of(n, x, x_stride, w, matrix, panel, Prefetch<0>{nullptr, 0}, row,
                            epilogue);
            }
            row += n;
        }
    };
    if constexpr (sizeof(T) < sizeof(float)) {
        if (num_tiles >= kManyTiles && matrix.k <= kMaxWidenedK) {
            run_tiles(widen_panel(matrix.panel(panel), matrix.k, widened));
            return;
        }
    }
    run_tiles(matrix.panel(panel));
}

}  // namespace refectory::REFECTORY_LEVEL
