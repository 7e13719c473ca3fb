// What Python calls. No exception leaves it: a failure is a null pointer or a nonzero return, and
// refectory_last_error() says what it was.

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "level.h"

namespace {

thread_local std::string last_error;

const refectory::Level& find_level(const char* name) {
    for (const refectory::Level* level : {&refectory::avx512::kLevel, &refectory::avx2::kLevel}) {
        if (std::strcmp(level->name, name) == 0) return *level;
    }
    throw std::invalid_argument(std::string("no instruction level is called ") + name);
}

template <class Call>
int guarded(Call call) {
    try {
        call();
        return 0;
    } catch (const std::bad_alloc&) {
        last_error = "out of memory";
    } catch (const std::exception& error) {
        last_error = error.what();
    }
    return 1;
}

}  // namespace

#define REFECTORY_API extern "C" __attribute__((visibility("default")))

REFECTORY_API const char* refectory_last_error() { return last_error.c_str(); }

REFECTORY_API refectory::Decoder* refectory_decoder_create(const char* level,
                                                           const RefectoryDecoderConfig* config) {
    refectory::Decoder* decoder = nullptr;
    guarded([&] { decoder = find_level(level).make_decoder(*config).release(); });
    return decoder;
}

REFECTORY_API void refectory_decoder_destroy(refectory::Decoder* decoder) { delete decoder; }

REFECTORY_API int refectory_decoder_add_rotary_table(refectory::Decoder* decoder, const float* cos,
                                                     const float* sin) {
    return guarded([&] { decoder->add_rotary_table(cos, sin); });
}

REFECTORY_API int refectory_decoder_add_layer(refectory::Decoder* decoder,
                                              const RefectoryLayerWeights* weights) {
    return guarded([&] { decoder->add_layer(*weights); });
}

REFECTORY_API int refectory_decoder_set_ends(refectory::Decoder* decoder, const void* embedding,
                                             const void* lm_head, const float* final_norm) {
    return guarded([&] { decoder->set_ends(embedding, lm_head, final_norm); });
}

REFECTORY_API int refectory_decoder_copy_blocks(refectory::Decoder* decoder,
                                                const std::int32_t* sources,
                                                const std::int32_t* targets, int count) {
    return guarded([&] { decoder->copy_blocks(sources, targets, count); });
}

REFECTORY_API int refectory_decoder_step(refectory::Decoder* decoder, const RefectoryStep* step) {
    return guarded([&] { decoder->step(*step); });
}

// Sampling without a decoder. logits: [num_rows][vocab_size]; tokens: [num_rows], written. The
// processor runs the level, and the rows' ids are below vocab_size.
REFECTORY_API int refectory_sample(const char* level, const float* logits, int num_rows,
                                   int vocab_size, const RefectorySamplingRow* rows,
                                   RefectorySampledToken* tokens) {
    return guarded([&] {
        for (int row = 0; row < num_rows; row++) {
            find_level(level).sample(logits + static_cast<std::size_t>(row) * vocab_size,
                                     vocab_size, rows[row], tokens[row]);
        }
    });
}
