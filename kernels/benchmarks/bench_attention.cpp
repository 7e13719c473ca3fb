// paged_attention as a step runs it, all layers: decode against the speed of memory, prefill
// against that of arithmetic.

#include "random_decoder.h"

namespace refectory::benchmark {

void run(const Arguments& arguments) {
    const auto run = [&](const ModelShape& shape, const char* name, const Batch& batch) {
        RandomDecoder decoder(shape, arguments.num_threads, batch.num_sequences, batch.context);
        const StepRuns runs = decoder.run(batch, arguments.case_s);
        report("attention", name, runs.part_s("attention"), shape.cost("attention", batch));
    };
    run(kSmolLM2, "decode n=1, context 2000", {1, 2000, 1});
    // Keys and values beyond every cache: the other parts may be as small as they can be.
    ModelShape shape = kSmolLM2;
    shape.hidden_size = shape.intermediate_size = 64;
    shape.vocab_size = 64;
    run(shape, "decode n=32, context 512", {32, 512, 1});
    run(shape, "decode n=64, context 600", {64, 600, 1});
    shape.num_layers = 4;
    run(shape, "prefill of 512 tokens, 4 layers", {1, 512, 512});
    run(shape, "prefill of 4000 tokens, 4 layers", {1, 4000, 4000});
}

}  // namespace refectory::benchmark

int main(int argc, char** argv) {
    refectory::benchmark::run(refectory::benchmark::read_arguments(argc, argv));
}
