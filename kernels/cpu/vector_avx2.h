// Eight floats: AVX2 and FMA.

#pragma once

#include <immintrin.h>

#include "bfloat16.h"

namespace refectory::avx2 {

constexpr int kLanes = 8;
using Vec = __m256;  // + - * / are the compiler's
using Mask = __m256;

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec set1(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
// Where a lane is NaN, the second operand's.
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec round(Vec x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline float reduce_add(Vec x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline float reduce_max(Vec x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
// p * 2^n for a whole n whose result is normal.
inline Vec scale_by_power_of_two(Vec p, Vec n) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), bits));
}

inline Mask less(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
// Lanes [first, last) of the vector; both may lie outside of it.
inline Mask lanes_between(int first, int last) {
    const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    const __m256i too_low = _mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane);
    const __m256i low_enough = _mm256_cmpgt_epi32(_mm256_set1_epi32(last), lane);
    return _mm256_castsi256_ps(_mm256_andnot_si256(too_low, low_enough));
}
inline Vec select(Mask mask, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, mask); }

}  // namespace refectory::avx2
