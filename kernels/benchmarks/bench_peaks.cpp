// What this machine can do at all, on all threads: the bounds of every other benchmark.

#include <cstring>

#include "benchmark.h"
#include "memory.h"
#include "thread_team.h"
#include "vector.h"

namespace refectory::benchmark {

using namespace refectory::REFECTORY_LEVEL;

constexpr int kChains = 12;  // independent sums: more than latency times units
constexpr int kRounds = 5'000'000;  // some 10 ms: what a burst reaches, a step does not
constexpr std::size_t kReadBytes = std::size_t{512} << 20;
constexpr int kStreams = 4;  // read side by side by each thread: faster than one

void multiply_add(float seed) {
    Vec sums[kChains];
    for (Vec& sum : sums) sum = set1(seed);
    const Vec factor = set1(0.5f);
    for (int round = 0; round < kRounds; round++) {
#pragma GCC unroll 16
        for (Vec& sum : sums) sum = fma(sum, factor, factor);
    }
    Vec total = zero();
    for (const Vec& sum : sums) total = total + sum;
    volatile float result = reduce_add(total);
    static_cast<void>(result);
}

void read(const float* data, std::size_t size) {
    Vec sums[kStreams];
    for (Vec& sum : sums) sum = zero();
    const std::size_t stream = size / kStreams;
    constexpr int kLine = 64 / sizeof(float);
    for (std::size_t i = 0; i < stream; i += 4 * kLine) {
#pragma GCC unroll 4
        for (int s = 0; s < kStreams; s++) {
#pragma GCC unroll 8
            for (int j = 0; j < 4 * kLine; j += kLanes) {
                sums[s] = max(sums[s], load(data + s * stream + i + j));
            }
        }
    }
    Vec total = zero();
    for (const Vec& sum : sums) total = max(total, sum);
    volatile float result = reduce_max(total);
    static_cast<void>(result);
}

void run(const Arguments& arguments) {
    ThreadTeam team(thread_cpus(arguments.num_threads));
    const double num_fmas = static_cast<double>(kChains) * kLanes * kRounds * team.size();
    const auto compute = [&] { team.run([](int) { multiply_add(1.0f); }); };
    report("fma", "float32", repeat(arguments.case_s, [&] { return seconds_of(compute); }),
           {2 * num_fmas, 0});

    const Array<float> data(kReadBytes / sizeof(float));
    std::memset(data.data(), 0, kReadBytes);
    const std::size_t share = kReadBytes / sizeof(float) / team.size() / 1024 * 1024;
    const auto read_all = [&] {
        team.run([&](int member) { read(data.data() + member * share, share); });
    };
    report("read", "512 MiB on 2 MiB pages",
           repeat(arguments.case_s, [&] { return seconds_of(read_all); }),
           {0, static_cast<double>(share * sizeof(float) * team.size())});
}

}  // namespace refectory::benchmark

int main(int argc, char** argv) {
    refectory::benchmark::run(refectory::benchmark::read_arguments(argc, argv));
}
