#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace refectory {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Kernels ask for cache lines a little past the end of what they read.
constexpr std::size_t kSlack = 4096;
constexpr std::size_t kChunk = std::size_t{64} << 20;  // untouched pages cost nothing

// AddressSanitizer knows nothing of the system's own memory: it is told what lies around arrays.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kRedZone = 64;
void forbid(const void* start, std::size_t size) { __asan_poison_memory_region(start, size); }
void allow(const void* start, std::size_t size) { __asan_unpoison_memory_region(start, size); }
#else
constexpr std::size_t kRedZone = 0;
void forbid(const void*, std::size_t) {}
void allow(const void*, std::size_t) {}
#endif
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
    forbid(mapping_, mapping_size_);
    allow(data_, num_bytes);
}

PageMemory::~PageMemory() {
    if (mapping_ == nullptr) return;
    allow(mapping_, mapping_size_);
    munmap(mapping_, mapping_size_);
}

void* Arena::allocate_bytes(std::size_t num_bytes) {
    constexpr std::size_t kLine = 64;
    const std::size_t size = (num_bytes + kRedZone + kLine - 1) / kLine * kLine;
    if (size > num_left_) {
        num_left_ = std::max(size, kChunk);
        next_ = static_cast<char*>(chunks_.emplace_back(num_left_).data());
        forbid(next_, num_left_);
    }
    void* const allocated = next_;
    allow(allocated, num_bytes);
    next_ += size;
    num_left_ -= size;
    return allocated;
}

}  // namespace refectory
