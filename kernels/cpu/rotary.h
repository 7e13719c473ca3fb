// rotary: the two halves of a head rotated against each other by the token's position.
// Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".

#pragma once

#include "vector.h"

namespace refectory::REFECTORY_LEVEL {

// head: [2 * half], in place; cos, sin: [half] of the position; half: a multiple of kLanes.
inline void rotary(float* head, const float* cos, const float* sin, int half, float scale) {
    const Vec factor = set1(scale);
    for (int i = 0; i < half; i += kLanes) {
        const Vec a = load(head + i), b = load(head + half + i);
        const Vec c = load(cos + i) * factor, s = load(sin + i) * factor;
        store(head + i, fma(a, c, zero() - b * s));
        store(head + half + i, fma(b, c, a * s));
    }
}

}  // namespace refectory::REFECTORY_LEVEL
