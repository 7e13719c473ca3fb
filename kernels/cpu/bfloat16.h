// bfloat16 as a storage type: the upper half of a float. No arithmetic of its own.

#pragma once

#include <cstdint>
#include <cstring>

namespace refectory {

struct bfloat16 {
    std::uint16_t bits;
};

// To the nearest, ties to even; a NaN stays one.
inline bfloat16 to_bfloat16(float x) {
    std::uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};
    return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

inline float to_float(bfloat16 x) {
    const std::uint32_t u = static_cast<std::uint32_t>(x.bits) << 16;
    float f;
    std::memcpy(&f, &u, sizeof f);
    return f;
}
inline float to_float(float x) { return x; }

template <class T>
T from_float(float x);
template <>
inline bfloat16 from_float<bfloat16>(float x) {
    return to_bfloat16(x);
}
template <>
inline float from_float<float>(float x) {
    return x;
}

}  // namespace refectory
