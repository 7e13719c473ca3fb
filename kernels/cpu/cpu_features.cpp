// What this processor can compute, as far as the operating system lets us use it.
//
// A feature counts only when CPUID reports it and XCR0 says that the system saves its registers.
// Intel SDM volume 1, chapter 13 (XCR0), volume 2A, CPUID.

#include <cstdint>

namespace {

// Bit numbers of the mask that refectory_cpu_features returns; native.py has the same list.
enum Feature : std::uint32_t {
    kAvx2 = 0,
    kFma = 1,
    kF16c = 2,
    kAvx512f = 3,
    kAvx512bw = 4,
    kAvx512dq = 5,
    kAvx512vl = 6,
    kAvx512vnni = 7,
    kAvx512bf16 = 8,
    kAvx512fp16 = 9,
    kAmxTile = 10,
    kAmxInt8 = 11,
    kAmxBf16 = 12,
    kAvxVnni = 13,
};

}  // namespace

#if defined(__x86_64__)

#include <cpuid.h>

namespace {

struct Registers {
    std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
    Registers r;
    if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
    return r;
}

std::uint64_t read_xcr0() {
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<std::uint64_t>(high) << 32) | low;
}

constexpr bool has_bit(std::uint32_t word, int bit) { return ((word >> bit) & 1u) != 0; }

constexpr std::uint64_t kSavesYmm = (1u << 1) | (1u << 2);
constexpr std::uint64_t kSavesZmm = kSavesYmm | (1u << 5) | (1u << 6) | (1u << 7);
constexpr std::uint64_t kSavesTiles = (1u << 17) | (1u << 18);

std::uint32_t detect() {
    const Registers basic = cpuid(1, 0);
    const bool has_xgetbv = has_bit(basic.ecx, 27);  // OSXSAVE
    if (!has_xgetbv) return 0;
    const std::uint64_t xcr0 = read_xcr0();
    const Registers extended = cpuid(7, 0);
    const Registers extended1 = extended.eax >= 1 ? cpuid(7, 1) : Registers{};

    std::uint32_t mask = 0;
    const auto add = [&mask](Feature feature, bool present) {
        if (present) mask |= 1u << feature;
    };
    if ((xcr0 & kSavesYmm) == kSavesYmm) {
        add(kAvx2, has_bit(extended.ebx, 5));
        add(kFma, has_bit(basic.ecx, 12));
        add(kF16c, has_bit(basic.ecx, 29));
        add(kAvxVnni, has_bit(extended1.eax, 4));
    }
    if ((xcr0 & kSavesZmm) == kSavesZmm) {
        add(kAvx512f, has_bit(extended.ebx, 16));
        add(kAvx512dq, has_bit(extended.ebx, 17));
        add(kAvx512bw, has_bit(extended.ebx, 30));
        add(kAvx512vl, has_bit(extended.ebx, 31));
        add(kAvx512vnni, has_bit(extended.ecx, 11));
        add(kAvx512bf16, has_bit(extended1.eax, 5));
        add(kAvx512fp16, has_bit(extended.edx, 23));
    }
    if ((xcr0 & kSavesTiles) == kSavesTiles) {
        add(kAmxBf16, has_bit(extended.edx, 22));
        add(kAmxTile, has_bit(extended.edx, 24));
        add(kAmxInt8, has_bit(extended.edx, 25));
    }
    return mask;
}

}  // namespace

#else

namespace {

std::uint32_t detect() { return 0; }

}  // namespace

#endif

// One bit a Feature; 0 on processors other than x86-64.
extern "C" __attribute__((visibility("default"))) std::uint32_t refectory_cpu_features() {
    return detect();
}
