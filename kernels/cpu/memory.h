// Large arrays on 2 MiB pages, taken from the system as they are touched.

#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace refectory {

// Bytes filled with zeros, aligned to 2 MiB. Throws std::bad_alloc.
class PageMemory {
  public:
    PageMemory() = default;
    explicit PageMemory(std::size_t num_bytes);
    ~PageMemory();
    PageMemory(PageMemory&& other) noexcept { swap(other); }
    PageMemory& operator=(PageMemory&& other) noexcept {
        swap(other);
        return *this;
    }

    void* data() const { return data_; }

  private:
    void swap(PageMemory& other) {
        std::swap(mapping_, other.mapping_);
        std::swap(mapping_size_, other.mapping_size_);
        std::swap(data_, other.data_);
    }

    void* mapping_ = nullptr;
    std::size_t mapping_size_ = 0;
    void* data_ = nullptr;
};

template <class T>
class Array {
  public:
    Array() = default;
    explicit Array(std::size_t size) : memory_(size * sizeof(T)) {}

    T* data() const { return static_cast<T*>(memory_.data()); }
    T& operator[](std::size_t index) const { return data()[index]; }

  private:
    PageMemory memory_;
};

// Many arrays on the same large pages, all of them given back at once.
class Arena {
  public:
    // Zeros, aligned to a cache line. Throws std::bad_alloc.
    template <class T>
    T* allocate(std::size_t size) {
        return static_cast<T*>(allocate_bytes(size * sizeof(T)));
    }

  private:
    void* allocate_bytes(std::size_t num_bytes);

    std::vector<PageMemory> chunks_;
    char* next_ = nullptr;
    std::size_t num_left_ = 0;
};

}  // namespace refectory
