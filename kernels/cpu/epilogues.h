// What happens to a tile's sums while they are still in registers. An epilogue is called with
// (row, panel, left half of the panel's columns, right half).

#pragma once

#include "linear.h"

namespace refectory::REFECTORY_LEVEL {

struct Store {
    float* out;  // [rows][stride]
    std::size_t stride;

    void operator()(int row, int panel, Vec left, Vec right) const {
        float* p = out + row * stride + panel * kPanelColumns;
        store(p, left);
        store(p + kLanes, right);
    }
};

struct AddTo {
    float* out;
    std::size_t stride;

    void operator()(int row, int panel, Vec left, Vec right) const {
        float* p = out + row * stride + panel * kPanelColumns;
        store(p, load(p) + left);
        store(p + kLanes, load(p + kLanes) + right);
    }
};

// cap * tanh(x / cap), as Gemma 2 bounds its logits.
struct StoreCapped {
    Store store_to;
    float cap;

    void operator()(int row, int panel, Vec left, Vec right) const {
        const Vec c = set1(cap), inverse = set1(1.0f / cap);
        store_to(row, panel, c * tanh(left * inverse), c * tanh(right * inverse));
    }
};

inline Vec silu(Vec x) { return x / (set1(1.0f) + exp(zero() - x)); }

// Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", the tanh approximation.
inline Vec gelu_tanh(Vec x) {
    const Vec cubic = fma(x * x * x, set1(0.044715f), x);
    return set1(0.5f) * x * (set1(1.0f) + tanh(cubic * set1(0.79788456f)));
}

// Panels hold kLanes gate columns, then the same kLanes up columns: half as many come out.
template <Vec (*Activate)(Vec)>
struct StoreGated {
    float* out;
    std::size_t stride;

    void operator()(int row, int panel, Vec gate, Vec up) const {
        store(out + row * stride + panel * kLanes, Activate(gate) * up);
    }
};

}  // namespace refectory::REFECTORY_LEVEL
