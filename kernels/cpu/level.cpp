// Compiled once per instruction level: everything that computes.

#include "level.h"

#include "decoder.h"
#include "sampling.h"

namespace refectory::REFECTORY_LEVEL {

namespace {

std::unique_ptr<Decoder> make_decoder(const RefectoryDecoderConfig& config) {
    if (config.element == kFloat32) return std::make_unique<DecoderOf<float>>(config);
    return std::make_unique<DecoderOf<bfloat16>>(config);
}

}  // namespace

#if defined(REFECTORY_AVX512)
const Level kLevel{"avx512", make_decoder, sample};
#else
const Level kLevel{"avx2", make_decoder, sample};
#endif

}  // namespace refectory::REFECTORY_LEVEL
