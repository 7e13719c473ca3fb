// Which thread-sized pieces a step's attention falls into. The pieces never change a result (see
// attention.h), only who computes it; so the plan may look at the whole batch.

#pragma once

#include <algorithm>
#include <vector>

#include "abi.h"
#include "attention.h"

namespace refectory::REFECTORY_LEVEL {

constexpr int kItemTokens = 64;  // query tokens of one piece of a prefill

struct AttentionItem {
    int sequence;
    int kv_head;
    Span heads;      // of the group that shares the KV head
    Span tokens;     // rows of the step
    int segment;     // the only segment of keys that it looks at; -1: all of them, in order
    int partial;     // where that segment's contributions go, one a row; -1 with all segments
};

// Rows whose segments were computed apart: their contributions lie one segment after another.
struct AttentionMerge {
    AttentionItem rows;
    int num_segments;
};

struct AttentionPlan {
    std::vector<AttentionItem> items;
    std::vector<AttentionMerge> merges;
    int num_partials = 0;
    // Whether the item of a sequence's only token stores that token's key and value itself; all
    // others are stored before any item runs.
    bool stores_single_tokens = false;
    bool stores_others = false;

    void build(const RefectoryStep& step, int num_kv_heads, int group_size, int num_threads) {
        items.clear();
        merges.clear();
        num_partials = 0;
        const int num_chunks = (group_size + kTileRows - 1) / kTileRows;
        stores_single_tokens = num_chunks == 1;
        stores_others = !stores_single_tokens || step.num_tokens > step.num_sequences;
        const bool is_short_of_work =
            step.num_sequences * num_kv_heads * num_chunks < 4 * num_threads;
        // Prefills first: their pieces are the large ones.
        for (const bool is_decode : {false, true}) {
            for (int s = 0; s < step.num_sequences; s++) {
                const Span rows{step.query_starts[s], step.query_starts[s + 1]};
                if ((rows.last - rows.first == 1) != is_decode) continue;
                const int num_segments =
                    (step.context_lens[s] + kSegmentTokens - 1) / kSegmentTokens;
                const bool is_split = is_decode && is_short_of_work && num_segments > 1;
                for (int first = rows.first; first < rows.last; first += kItemTokens) {
                    const Span tokens{first, std::min(first + kItemTokens, rows.last)};
                    for (int head = 0; head < num_kv_heads; head++) {
                        for (int chunk = 0; chunk < num_chunks; chunk++) {
                            const Span heads{group_size * chunk / num_chunks,
                                             group_size * (chunk + 1) / num_chunks};
                            add({s, head, heads, tokens, -1, -1}, is_split ? num_segments : 0);
                        }
                    }
                }
            }
        }
    }

  private:
    void add(AttentionItem item, int num_segments) {
        if (num_segments == 0) {
            items.push_back(item);
            return;
        }
        item.partial = num_partials;
        merges.push_back({item, num_segments});
        for (int segment = 0; segment < num_segments; segment++) {
            item.segment = segment;
            item.partial = num_partials;
            items.push_back(item);
            num_partials += item.heads.last - item.heads.first;
        }
    }
};

}  // namespace refectory::REFECTORY_LEVEL
