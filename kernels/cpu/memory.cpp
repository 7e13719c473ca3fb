#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace refectory {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Kernels ask for cache lines a little past the end of what they read.
constexpr std::size_t kSlack = 4096;
constexpr std::size_t kChunk = std::size_t{64} << 20;  // untouched pages cost nothing
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

void* Arena::allocate_bytes(std::size_t num_bytes) {
    constexpr std::size_t kLine = 64;
    const std::size_t size = (num_bytes + kLine - 1) / kLine * kLine;
    if (size > num_left_) {
        num_left_ = std::max(size, kChunk);
        next_ = static_cast<char*>(chunks_.emplace_back(num_left_).data());
    }
    void* const allocated = next_;
    next_ += size;
    num_left_ -= size;
    return allocated;
}

}  // namespace refectory
