// A decoder's whole step, and the parts of its best run.

#include "random_decoder.h"

namespace refectory::benchmark {

void run(const Arguments& arguments) {
    const ModelShape& shape = kSmolLM2;
    RandomDecoder decoder(shape, arguments.num_threads, 64, 576);
    const std::pair<const char*, Batch> cases[] = {
        {"decode n=1, context 192", {1, 192, 1}},   {"decode n=8, context 192", {8, 192, 1}},
        {"decode n=32, context 192", {32, 192, 1}}, {"decode n=64, context 576", {64, 576, 1}},
        {"prefill of 512 tokens", {1, 512, 512}},
    };
    for (const auto& [name, batch] : cases) {
        const StepRuns runs = decoder.run(batch, arguments.case_s);
        report("step", name, runs.steps_s, shape.step_cost(batch));
        double wait_s = 0;
        for (const StepPart& part : runs.best()) {
            report("- " + std::string(part.name), name, {part.work_s},
                   shape.cost(part.name, batch));
            wait_s += part.wait_s;
        }
        report("- wait", name, {wait_s}, {});
    }
}

}  // namespace refectory::benchmark

int main(int argc, char** argv) {
    refectory::benchmark::run(refectory::benchmark::read_arguments(argc, argv));
}
