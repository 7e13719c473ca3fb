// Sixteen floats: AVX-512 F, BW, DQ, VL.

#pragma once

#include <immintrin.h>

#include "bfloat16.h"

namespace refectory::avx512 {

constexpr int kLanes = 16;
using Vec = __m512;    // + - * / are the compiler's
using Mask = __mmask16;

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec set1(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
// Where a lane is NaN, the second operand's.
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec round(Vec x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline float reduce_add(Vec x) { return _mm512_reduce_add_ps(x); }
inline float reduce_max(Vec x) { return _mm512_reduce_max_ps(x); }
// p * 2^n for a whole n whose result is normal.
inline Vec scale_by_power_of_two(Vec p, Vec n) { return _mm512_scalef_ps(p, n); }

inline Mask less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
// Lanes [first, last) of the vector; both may lie outside of it.
inline Mask lanes_between(int first, int last) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(first)) &
           _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(last));
}
inline Vec select(Mask mask, Vec yes, Vec no) { return _mm512_mask_mov_ps(no, mask, yes); }

}  // namespace refectory::avx512
