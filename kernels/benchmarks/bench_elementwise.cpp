// What lies between matrices and attention: a thread's time for a row whose data is in its cache.

#include <memory>

#include "benchmark.h"
#include "epilogues.h"
#include "kv_cache.h"
#include "rms_norm.h"
#include "rotary.h"

namespace refectory::benchmark {

using namespace refectory::REFECTORY_LEVEL;

constexpr int kRows = 32;
constexpr int kSize = 2048;
constexpr int kHeadDim = 64;

struct Buffers {
    alignas(64) float x[kRows][kSize], y[kRows][kSize], weight[kSize];
    alignas(64) bfloat16 blocks[kRows][3 * 2 * kBlockTokens * kHeadDim];
};

void run(const Arguments& arguments) {
    const auto buffers = std::make_unique<Buffers>();
    Buffers& b = *buffers;
    for (auto& row : b.x) std::fill_n(row, kSize, 0.25f);
    std::fill_n(b.weight, kSize, 1.0f);
    const auto time_row = [&](const char* op, const std::string& name, const auto& compute) {
        report(op, name, repeat(arguments.case_s,
                                [&] {
                                    return seconds_of([&] {
                                               for (int row = 0; row < kRows; row++) compute(row);
                                           }) /
                                           kRows;
                                }),
               {});
    };
    for (const int size : {576, kSize}) {
        time_row("rms_norm", std::to_string(size) + " features",
                 [&](int r) { rms_norm(b.x[r], b.weight, b.y[r], size, size, 1e-5f); });
    }
    std::fill_n(b.weight, kHeadDim, 0.70710678f);  // an eighth of a turn
    time_row("rotary", "12 heads of 64 features", [&](int r) {
        for (int head = 0; head < 12; head++) {
            rotary(b.x[r] + head * kHeadDim, b.weight, b.weight, kHeadDim / 2, 1.0f);
        }
    });
    const KVCache<bfloat16> cache{b.blocks[0], 3, kHeadDim};
    time_row("kv_cache_store", "3 heads of 64 features", [&](int r) {
        for (int head = 0; head < 3; head++) {
            kv_cache_store(cache, r, head, r % kBlockTokens, b.x[r], b.y[r]);
        }
    });
    const auto time_epilogue = [&](const char* name, const auto& epilogue) {
        time_row("epilogue", name, [&](int r) {
            for (int panel = 0; panel < kSize / kPanelColumns; panel++) {
                const float* in = b.y[r] + panel * kPanelColumns;
                epilogue(r, panel, load(in), load(in + kLanes));
            }
        });
    };
    time_epilogue("store, 2048 columns", Store{b.x[0], kSize});
    time_epilogue("add to residual, 2048 columns", AddTo{b.x[0], kSize});
    time_epilogue("silu and product, 2048 columns", StoreGated<silu>{b.x[0], kSize});
    time_epilogue("gelu_tanh and product, 2048 columns", StoreGated<gelu_tanh>{b.x[0], kSize});
    time_epilogue("soft cap, 2048 columns", StoreCapped{{b.x[0], kSize}, 30.0f});
}

}  // namespace refectory::benchmark

int main(int argc, char** argv) {
    refectory::benchmark::run(refectory::benchmark::read_arguments(argc, argv));
}
