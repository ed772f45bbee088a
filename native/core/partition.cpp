#include "core/partition.h"

#include <algorithm>

namespace netfold {

Partition partition_of(const Collective& what, size_t lanes, uint32_t payload_bytes,
                       uint64_t sequence) {
  const uint64_t chunk = payload_bytes / nf_dtype_bytes(what.dtype);
  const uint64_t share = (what.elements + lanes - 1) / lanes;
  const uint64_t blocks = (std::max(chunk, share) - 1) / NF_FIXED_BLOCK_ELEMENTS + 1;
  return {.part_elements = blocks * NF_FIXED_BLOCK_ELEMENTS,
          .first_lane = sequence % lanes,
          .lanes = lanes};
}

std::optional<Collective> part_of(const Collective& what, const Partition& partition, size_t lane) {
  const uint64_t index = (lane + partition.lanes - partition.first_lane) % partition.lanes;
  const uint64_t first = index * partition.part_elements;
  if (first >= what.elements) return std::nullopt;
  Collective part = what;
  part.tensor_elements = what.elements;
  part.elements = std::min(partition.part_elements, what.elements - first);
  if (what.data != nullptr) part.data += first * nf_dtype_bytes(what.dtype);
  return part;
}

}  // namespace netfold
