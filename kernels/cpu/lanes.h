// What choosing a token needs of a level's vectors: comparisons as bits, and sums in double.

#pragma once

#include <array>
#include <cstdint>

#include "vector.h"

namespace refectory::REFECTORY_LEVEL {

// Lane 0 is the lowest bit. No comparison but unordered() takes a NaN.
#if defined(REFECTORY_AVX512)
inline Mask at_least(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline Mask unordered(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
inline Mask either(Mask a, Mask b) { return _kor_mask16(a, b); }
inline std::uint32_t bits(Mask mask) { return mask; }
// The lanes of these bits, one after another, then what may be.
inline void store_compressed(float* p, Vec x, std::uint32_t lanes) {
    store(p, _mm512_maskz_compress_ps(static_cast<Mask>(lanes), x));
}

// (order_of(x) - low) >> shift, lane by lane; see border.h.
inline void store_digits(std::int32_t* digits, Vec x, std::int32_t low, int shift) {
    const __m512i bits = _mm512_castps_si512(x), sign = _mm512_srai_epi32(bits, 31);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __m512i order = _mm512_sub_epi32(_mm512_xor_si512(magnitude, sign), sign);
    _mm512_storeu_si512(digits, _mm512_srl_epi32(_mm512_sub_epi32(order, _mm512_set1_epi32(low)),
                                                 _mm_cvtsi32_si128(shift)));
}

using DoubleVec = __m512d;
inline DoubleVec low_doubles(Vec x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
inline DoubleVec high_doubles(Vec x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
#else
inline Mask at_least(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
inline Mask unordered(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_UNORD_Q); }
inline Mask either(Mask a, Mask b) { return _mm256_or_ps(a, b); }
inline std::uint32_t bits(Mask mask) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(mask));
}
constexpr std::array<std::uint64_t, 256> kCompressedLanes = [] {
    std::array<std::uint64_t, 256> order{};  // a byte each
    for (unsigned lanes = 0; lanes < order.size(); lanes++) {
        for (unsigned lane = 0, n = 0; lane < kLanes; lane++) {
            if ((lanes >> lane & 1) != 0) order[lanes] |= std::uint64_t{lane} << (8 * n++);
        }
    }
    return order;
}();
inline void store_compressed(float* p, Vec x, std::uint32_t lanes) {
    const __m128i order = _mm_cvtsi64_si128(static_cast<std::int64_t>(kCompressedLanes[lanes]));
    store(p, _mm256_permutevar8x32_ps(x, _mm256_cvtepu8_epi32(order)));
}

inline void store_digits(std::int32_t* digits, Vec x, std::int32_t low, int shift) {
    const __m256i bits = _mm256_castps_si256(x), sign = _mm256_srai_epi32(bits, 31);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i order = _mm256_sub_epi32(_mm256_xor_si256(magnitude, sign), sign);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(digits),
                        _mm256_srl_epi32(_mm256_sub_epi32(order, _mm256_set1_epi32(low)),
                                         _mm_cvtsi32_si128(shift)));
}

using DoubleVec = __m256d;
inline DoubleVec low_doubles(Vec x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
inline DoubleVec high_doubles(Vec x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
#endif

inline std::uint32_t bits_between(Vec x, Vec low, Vec high) {
    return bits(at_least(x, low)) & bits(at_least(high, x));
}

// So many lanes at every level: what is computed lane by lane is the same at all of them.
constexpr int kGroup = 16;
constexpr int kGroupVectors = kGroup / kLanes;

class GroupSums {
  public:
    // part: which vector of its group x is
    void add(int part, Vec x) {
        sums_[2 * part] = sums_[2 * part] + low_doubles(x);
        sums_[2 * part + 1] = sums_[2 * part + 1] + high_doubles(x);
    }
    double total() const {
        double lanes[kGroup];
        std::memcpy(lanes, sums_, sizeof lanes);
        for (int stride = kGroup / 2; stride > 0; stride /= 2) {
            for (int i = 0; i < stride; i++) lanes[i] += lanes[i + stride];
        }
        return lanes[0];
    }

  private:
    DoubleVec sums_[2 * kGroupVectors] = {};
};

}  // namespace refectory::REFECTORY_LEVEL
