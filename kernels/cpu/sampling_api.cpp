// Sampling without a decoder, for tests and benchmarks.

#include <cstddef>
#include <cstring>
#include <new>

#include "level.h"

namespace {

enum Result : int { kDone = 0, kNoSuchLevel = 1, kOutOfMemory = 2 };

}  // namespace

// logits: [num_rows][vocab_size]; tokens: [num_rows], written. The processor runs the level, and
// the rows' ids are below vocab_size.
extern "C" __attribute__((visibility("default"))) int refectory_sample(
    const char* level, const float* logits, int num_rows, int vocab_size,
    const RefectorySamplingRow* rows, RefectorySampledToken* tokens) {
    for (const refectory::Level* known : {&refectory::avx2::kLevel, &refectory::avx512::kLevel}) {
        if (std::strcmp(known->name, level) != 0) continue;
        try {
            for (int row = 0; row < num_rows; row++) {
                known->sample(logits + static_cast<std::size_t>(row) * vocab_size, vocab_size,
                              rows[row], tokens[row]);
            }
        } catch (const std::bad_alloc&) {
            return kOutOfMemory;
        }
        return kDone;
    }
    return kNoSuchLevel;
}
