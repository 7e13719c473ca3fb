#include "thread_team.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>

namespace refectory {

namespace {

using Clock = std::chrono::steady_clock;

// What a sleep and its wake-up cost; a thread that is later than that has lost its processor.
constexpr std::chrono::microseconds kSpin{50};
constexpr int kPausesPerLook = 16;

void bind_to(int cpu) {
    if (cpu == kAnywhere) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);  // a processor that went away: run anywhere
}

// Binds the calling thread for a while; it is not ours, so it gets its processors back.
class Binding {
  public:
    explicit Binding(int cpu)
        : is_bound_(cpu != kAnywhere && sched_getaffinity(0, sizeof before_, &before_) == 0) {
        if (is_bound_) bind_to(cpu);
    }
    ~Binding() {
        if (is_bound_) sched_setaffinity(0, sizeof before_, &before_);
    }

  private:
    cpu_set_t before_;
    bool is_bound_;
};

}  // namespace

void Turnstile::advance() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (num_asleep_.load(std::memory_order_seq_cst) > 0) {
        syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
}

void Turnstile::wait_while(std::uint32_t value) {
    const Clock::time_point end = Clock::now() + kSpin;
    do {
        for (int i = 0; i < kPausesPerLook; i++) {
            if (this->value() != value) return;
            _mm_pause();
        }
    } while (Clock::now() < end);
    num_asleep_.fetch_add(1, std::memory_order_seq_cst);
    while (this->value() == value) {
        syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
    }
    num_asleep_.fetch_sub(1, std::memory_order_seq_cst);
}

ThreadTeam::ThreadTeam(std::vector<int> cpus) : cpus_(std::move(cpus)) {
    try {
        for (int member = 1; member < size(); member++) {
            workers_.emplace_back([this, member] { serve(member); });
        }
    } catch (...) {  // the system gives no more threads; those that run must not outlive this
        end();
        throw;
    }
}

ThreadTeam::~ThreadTeam() { end(); }

void ThreadTeam::end() {
    is_ending_.store(true);
    started_.advance();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::run(const std::function<void(int)>& work) {
    const Binding binding(cpus_[0]);
    work_ = &work;
    started_.advance();
    work(0);
    barrier();
}

void ThreadTeam::barrier() {
    if (size() == 1) return;
    const std::uint32_t round = passed_.value();
    if (num_waiting_.fetch_add(1, std::memory_order_acq_rel) == size() - 1) {
        num_waiting_.store(0, std::memory_order_relaxed);
        passed_.advance();
    } else {
        passed_.wait_while(round);
    }
}

void ThreadTeam::serve(int member) {
    bind_to(cpus_[static_cast<std::size_t>(member)]);
    for (std::uint32_t round = 0;; round++) {
        started_.wait_while(round);
        if (is_ending_.load()) return;
        (*work_)(member);
        barrier();
    }
}

}  // namespace refectory
