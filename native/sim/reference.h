// What a collective works on and what must come out, computed by plain scalar loops of its own.
#pragma once

#include <vector>

#include "core/types.h"

namespace netfold {

struct CollectivePlan {
  bool skipped = false;  // another path carries it
  uint8_t op = NF_OP_SUM;
  uint8_t dtype = NF_DTYPE_FLOAT32;
  uint8_t mode = NF_MODE_FLOAT32;
  uint64_t elements = 1;
  uint64_t content_seed = 0;
  bool specials = false;  // NaN, infinities, denormals, -0 among the floats
};

[[nodiscard]] size_t element_bytes(const CollectivePlan& plan);

// The tensor of `rank` before the collective.
[[nodiscard]] std::vector<uint8_t> make_input(const CollectivePlan& plan, uint32_t rank);

// The tensor of every rank after it: the left fold of the inputs in rank order.
[[nodiscard]] std::vector<uint8_t> make_reference(const CollectivePlan& plan, uint32_t ranks);

}  // namespace netfold
