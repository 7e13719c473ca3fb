#include "memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace refectory {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Kernels ask for cache lines a little past the end of what they read.
constexpr std::size_t kSlack = 4096;
}  // namespace

PageMemory::PageMemory(std::size_t num_bytes) {
    const bool is_large = num_bytes >= kHugePage;
    const std::size_t alignment = is_large ? kHugePage : kSlack;
    mapping_size_ = num_bytes + kSlack + alignment;
    mapping_ = mmap(nullptr, mapping_size_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED) {
        mapping_ = nullptr;
        throw std::bad_alloc();
    }
    const auto start = reinterpret_cast<std::uintptr_t>(mapping_);
    data_ = reinterpret_cast<void*>((start + alignment - 1) / alignment * alignment);
    // Only advice: without huge pages everything works, 5 to 10 % slower.
    if (is_large) madvise(data_, num_bytes, MADV_HUGEPAGE);
}

PageMemory::~PageMemory() {
    if (mapping_ != nullptr) munmap(mapping_, mapping_size_);
}

}  // namespace refectory
