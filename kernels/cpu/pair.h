// A pair unit: kLanes columns of two neighbouring rows, the smallest thing that matrices and KV
// blocks are laid out in. One load brings both rows of a bfloat16 unit:
//   bfloat16: lane 0 row 0, lane 0 row 1, lane 1 row 0, ...   (widened by a shift and a mask)
//   float:    row 0 of all lanes, then row 1 of all lanes

#pragma once

#include "vector.h"

namespace refectory::REFECTORY_LEVEL {

constexpr int kPairSize = 2 * kLanes;  // elements of a unit

struct RowPair {
    Vec even, odd;
};

#if defined(REFECTORY_AVX512)
inline RowPair load_pair(const bfloat16* unit) {
    const __m512i words = _mm512_loadu_si512(unit);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536)))};
}
#else
inline RowPair load_pair(const bfloat16* unit) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(-65536)))};
}
#endif
inline RowPair load_pair(const float* unit) { return {load(unit), load(unit + kLanes)}; }

// Index within a unit of (lane, row); row is 0 or 1.
template <class T>
constexpr int pair_index(int lane, int row) {
    return sizeof(T) == 2 ? lane * 2 + row : row * kLanes + lane;
}

}  // namespace refectory::REFECTORY_LEVEL
