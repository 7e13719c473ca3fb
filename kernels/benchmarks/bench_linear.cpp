// linear_packed as a step runs it: each kind of matrix, all layers, by some rows.

#include "random_decoder.h"

namespace refectory::benchmark {

void run(ModelShape shape, const Arguments& arguments) {
    RandomDecoder decoder(shape, arguments.num_threads, 64, 512);
    for (const int rows : {1, 8, 32, 64, 128, 512}) {
        const Batch batch = rows <= 64 ? Batch{rows, 16, 1} : Batch{1, rows, rows};
        const StepRuns runs = decoder.run(batch, arguments.case_s);
        for (const char* part : {"qkv", "o", "gate_up", "down", "logits"}) {
            const bool is_of_one_row = batch.num_sequences == 1 && part == std::string("logits");
            if (is_of_one_row && rows > 1) continue;
            report("linear",
                   std::string(shape.name) + " " + part + " of " + std::to_string(rows) + " rows",
                   runs.part_s(part), shape.cost(part, batch));
        }
    }
}

void run(const Arguments& arguments) {
    run(kSmolLM2, arguments);
    ModelShape part_of_1b = kLlama1B;  // beyond every cache, and quick to make
    part_of_1b.num_layers = 4;
    part_of_1b.vocab_size = 32768;
    run(part_of_1b, arguments);
}

}  // namespace refectory::benchmark

int main(int argc, char** argv) {
    refectory::benchmark::run(refectory::benchmark::read_arguments(argc, argv));
}
