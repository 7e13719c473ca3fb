// A stage's pieces of work, shared out among a team: each member has a contiguous range of its
// own, so that it knows what it reads next, and helps the others once that is done, so that a
// member that was held up holds up nobody.

#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace refectory {

constexpr int kNoPiece = -1;

class WorkShare {
  public:
    explicit WorkShare(int num_members) : ranges_(static_cast<std::size_t>(num_members)) {}

    // Before the stage; the members meet between this and their first `take`.
    void reset(int num_pieces) {
        const auto size = static_cast<std::int64_t>(ranges_.size());
        for (std::int64_t i = 0; i < size; i++) {
            ranges_[i].next.store(static_cast<int>(num_pieces * i / size),
                                  std::memory_order_relaxed);
            ranges_[i].last = static_cast<int>(num_pieces * (i + 1) / size);
        }
    }

    // End of the member's own pieces.
    int last(int member) const { return ranges_[member].last; }

    // The member's next piece, one of somebody else's, or kNoPiece.
    int take(int member) {
        const int size = static_cast<int>(ranges_.size());
        for (int i = 0; i < size; i++) {
            Range& range = ranges_[(member + i) % size];
            if (range.next.load(std::memory_order_relaxed) >= range.last) continue;
            const int piece = range.next.fetch_add(1, std::memory_order_relaxed);
            if (piece < range.last) return piece;
        }
        return kNoPiece;
    }

  private:
    struct alignas(64) Range {
        std::atomic<int> next{0};
        int last = 0;

        Range() = default;
        Range(const Range& other) : next(other.next.load()), last(other.last) {}
    };
    std::vector<Range> ranges_;
};

}  // namespace refectory
