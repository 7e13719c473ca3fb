// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): the numbers of
// refectory_server/runner/philox.py, bit for bit.

#pragma once

#include <cstdint>

#include "vector.h"

namespace refectory::REFECTORY_LEVEL {

// A number in [0, 1) with 53 random bits. key: the seed; counter: the position.
inline double philox_uniform(std::uint64_t seed, std::uint64_t position) {
    std::uint32_t counter[4] = {static_cast<std::uint32_t>(position),
                                static_cast<std::uint32_t>(position >> 32), 0, 0};
    std::uint32_t key[2] = {static_cast<std::uint32_t>(seed),
                            static_cast<std::uint32_t>(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        const std::uint64_t low = std::uint64_t{0xD2511F53} * counter[0];
        const std::uint64_t high = std::uint64_t{0xCD9E8D57} * counter[2];
        counter[0] = static_cast<std::uint32_t>(high >> 32) ^ counter[1] ^ key[0];
        counter[1] = static_cast<std::uint32_t>(high);
        counter[2] = static_cast<std::uint32_t>(low >> 32) ^ counter[3] ^ key[1];
        counter[3] = static_cast<std::uint32_t>(low);
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    const std::uint64_t bits = counter[0] | std::uint64_t{counter[1]} << 32;
    return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace refectory::REFECTORY_LEVEL
