// Where a step's time goes, told by the marks that decoder_step.h sets.

#pragma once

#include <string_view>

#include "benchmark.h"

namespace refectory::benchmark {

struct StepPart {
    std::string_view name;
    double work_s = 0, wait_s = 0;  // wait: until the other members are through with it
};

class StepTrace {
  public:
    void start(int num_members) {
        members_.resize(static_cast<std::size_t>(num_members));
        for (Member& member : members_) {
            member.parts.clear();
            member.last_s = now_s();
        }
    }
    void mark(std::string_view part, int member_index) {
        Member& member = members_[static_cast<std::size_t>(member_index)];
        const double start_s = member.last_s;
        member.last_s = now_s();
        if (part == "wait") {
            member.parts[member.current].wait_s += member.last_s - start_s;
        } else {
            member.current = find(member.parts, part);
            member.parts[member.current].work_s += member.last_s - start_s;
        }
    }
    // The members' mean, in the order in which the parts first came.
    std::vector<StepPart> parts() const {
        std::vector<StepPart> mean;
        const double share = 1.0 / static_cast<double>(members_.size());
        for (const Member& member : members_) {
            for (const StepPart& part : member.parts) {
                StepPart& sum = mean[find(mean, part.name)];
                sum.work_s += part.work_s * share;
                sum.wait_s += part.wait_s * share;
            }
        }
        return mean;
    }

  private:
    struct alignas(64) Member {
        double last_s;
        std::size_t current;
        std::vector<StepPart> parts;
    };

    static std::size_t find(std::vector<StepPart>& parts, std::string_view name) {
        std::size_t i = 0;
        while (i < parts.size() && parts[i].name != name) i++;
        if (i == parts.size()) parts.push_back({name});
        return i;
    }

    std::vector<Member> members_;
};

inline StepTrace trace;

}  // namespace refectory::benchmark

#define REFECTORY_TRACE(part, member) refectory::benchmark::trace.mark(part, member)
