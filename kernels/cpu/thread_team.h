// A fixed team of threads that computes one step together. The caller is its first member.

#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace refectory {

constexpr int kAnywhere = -1;

// Waits for a number to change: a short spin, then sleep, so that nothing burns while there is no
// work. Where another process wants the processor, a long spin takes it from a thread that has work
// to do, and a sched_yield gives it away for a whole time slice: with a busy neighbour a step took
// up to three times as long, and four times bound to its processor.
class Turnstile {
  public:
    std::uint32_t value() const { return value_.load(std::memory_order_acquire); }
    void advance();
    void wait_while(std::uint32_t value);

  private:
    alignas(64) std::atomic<std::uint32_t> value_{0};  // wraps around
    alignas(64) std::atomic<int> num_asleep_{0};
};

class ThreadTeam {
  public:
    // cpus: for each member the processor it is bound to while it computes, or kAnywhere. Throws
    // std::system_error where the system gives no more threads.
    explicit ThreadTeam(std::vector<int> cpus);
    ~ThreadTeam();

    int size() const { return static_cast<int>(cpus_.size()); }
    // work(member) on every member; returns when all are done. `work` must not throw.
    void run(const std::function<void(int)>& work);
    // Within `run`: waits until every member is here.
    void barrier();

  private:
    void serve(int member);
    void end();

    const std::vector<int> cpus_;
    std::vector<std::thread> workers_;
    const std::function<void(int)>* work_ = nullptr;
    std::atomic<bool> is_ending_{false};
    Turnstile started_;
    Turnstile passed_;
    alignas(64) std::atomic<int> num_waiting_{0};
};

}  // namespace refectory
