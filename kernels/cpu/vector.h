// The vector type of an instruction level. Every kernel is written once against these names and
// compiled once per level, in a namespace of its own.
//
// A level's arithmetic is fixed: products are fused into sums only where fma() is written (the
// build says -ffp-contract=off), and reductions have one order. So a value does not depend on the
// kernel variant that computed it.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(REFECTORY_AVX512)
#define REFECTORY_LEVEL avx512
#include "vector_avx512.h"
#elif defined(REFECTORY_AVX2)
#define REFECTORY_LEVEL avx2
#include "vector_avx2.h"
#else
#error "compile with -DREFECTORY_AVX512 or -DREFECTORY_AVX2"
#endif

namespace refectory::REFECTORY_LEVEL {

constexpr float kLog2E = 1.44269504f;

// 2^x to about 2 units in the last place; 0 where x is below -126 (no subnormals).
inline Vec exp2(Vec x) {
    // Operand order: a NaN stays one.
    const Vec clamped = max(set1(-126.0f), min(set1(127.0f), x));
    const Vec whole = round(clamped);
    const Vec f = clamped - whole;  // in [-0.5, 0.5]
    // Taylor terms ln(2)^n / n!.
    Vec p = set1(1.540353039e-4f);
    p = fma(p, f, set1(1.333355815e-3f));
    p = fma(p, f, set1(9.618129108e-3f));
    p = fma(p, f, set1(5.550410866e-2f));
    p = fma(p, f, set1(2.402265070e-1f));
    p = fma(p, f, set1(6.931471806e-1f));
    p = fma(p, f, set1(1.0f));
    return select(less(x, set1(-126.0f)), zero(), scale_by_power_of_two(p, whole));
}

inline Vec exp(Vec x) { return exp2(x * set1(kLog2E)); }

// Absolute error below 1e-6.
inline Vec tanh(Vec x) {
    const Vec e = exp2(max(set1(-20.0f), min(set1(20.0f), x)) * set1(2.0f * kLog2E));
    return (e - set1(1.0f)) / (e + set1(1.0f));
}

}  // namespace refectory::REFECTORY_LEVEL
