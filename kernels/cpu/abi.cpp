// Sizes of the structs in abi.h, for Python to compare its own with.

#include "abi.h"

// sizes: [5], written: bytes, in the order of abi.h.
extern "C" __attribute__((visibility("default"))) void refectory_abi_sizes(std::int32_t* sizes) {
    sizes[0] = sizeof(RefectoryDecoderConfig);
    sizes[1] = sizeof(RefectoryLayerWeights);
    sizes[2] = sizeof(RefectorySamplingRow);
    sizes[3] = sizeof(RefectorySampledToken);
    sizes[4] = sizeof(RefectoryStep);
}
