// What the benchmarks share: arguments, repeated runs, and results as lines of JSON, which
// bench_native.py turns into a table.

#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace refectory::benchmark {

struct Arguments {
    int num_threads;
    double case_s;  // how long a case is repeated
};

inline Arguments read_arguments(int argc, char** argv) {
    Arguments arguments{};
    if (argc == 3) arguments = {std::atoi(argv[1]), std::atof(argv[2])};
    if (arguments.num_threads < 1 || arguments.case_s <= 0) {
        std::fprintf(stderr, "usage: %s NUM_THREADS SECONDS_PER_CASE, both above 0\n", argv[0]);
        std::exit(2);
    }
    return arguments;
}

// For each thread the processor it is bound to: those that this process may use, in turn.
inline std::vector<int> thread_cpus(int num_threads) {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    std::vector<int> allowed, cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &set)) allowed.push_back(cpu);
    }
    for (int i = 0; i < num_threads; i++) {
        cpus.push_back(allowed[static_cast<std::size_t>(i) % allowed.size()]);
    }
    return cpus;
}

inline double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

template <class Work>
double seconds_of(const Work& work) {
    const double start = now_s();
    work();
    return now_s() - start;
}

// Calls run(), which returns the seconds that count, for case_s seconds after a first time.
template <class Run>
std::vector<double> repeat(double case_s, const Run& run) {
    run();
    std::vector<double> times;
    const double end = now_s() + case_s;
    do {
        times.push_back(run());
    } while (now_s() < end);
    return times;
}

// What bounds a run; 0: nothing of the kind.
struct Cost {
    double flops = 0, bytes = 0;  // bytes: read from memory

    Cost operator+(const Cost& other) const { return {flops + other.flops, bytes + other.bytes}; }
};

inline void report(const std::string& op, const std::string& name, std::vector<double> times,
                   Cost cost) {
    std::sort(times.begin(), times.end());
    std::printf(
        "{\"op\": \"%s\", \"case\": \"%s\", \"best_s\": %.4g, \"median_s\": %.4g, "
        "\"flops\": %.6g, \"bytes\": %.6g}\n",
        op.c_str(), name.c_str(), times.front(), times[times.size() / 2], cost.flops, cost.bytes);
    std::fflush(stdout);
}

}  // namespace refectory::benchmark
