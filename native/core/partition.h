// How a collective is divided among the lanes of a group; the same on all ranks.
#pragma once

#include <optional>

#include "core/reduction.h"

namespace netfold {

struct Partition {
  uint64_t part_elements = 0;  // of every part but the last
  size_t first_lane = 0;       // has the first part
  size_t lanes = 1;
};

// Parts are whole blocks, so that fixed32 comes to the same numbers with any number of aggregators,
// and a chunk at least: a small tensor makes one trip to one aggregator. Collectives begin at
// different lanes by turns.
[[nodiscard]] Partition partition_of(const Collective& what, size_t lanes, uint32_t payload_bytes,
                                     uint64_t sequence);

// The part for a lane, if it has one.
[[nodiscard]] std::optional<Collective> part_of(const Collective& what, const Partition& partition,
                                                size_t lane);

}  // namespace netfold
