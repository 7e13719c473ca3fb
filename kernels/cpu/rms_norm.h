// rms_norm: x / sqrt(mean(x^2) + eps) * weight. Zhang and Sennrich 2019, "Root Mean Square Layer
// Normalization".

#pragma once

#include <cmath>

#include "vector.h"

namespace refectory::REFECTORY_LEVEL {

// x, weight, out: [padded], zeros from `size` on; out may be x. padded: a multiple of kLanes.
inline void rms_norm(const float* x, const float* weight, float* out, int size, int padded,
                     float eps) {
    Vec squares = zero();
    for (int i = 0; i < padded; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
    const Vec inverse = set1(1.0f / std::sqrt(reduce_add(squares) / static_cast<float>(size) + eps));
    for (int i = 0; i < padded; i += kLanes) {
        store(out + i, load(x + i) * inverse * load(weight + i));
    }
}

}  // namespace refectory::REFECTORY_LEVEL
