// What a collective works on and what must come out, computed by plain scalar loops of its own.
#pragma once

#include <span>
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

// What comes out of a collective, on every rank.
struct Reference {
  struct Pass {
    size_t element_bytes = 1;
    std::vector<uint8_t> bytes;
  };
  std::vector<uint8_t> tensor;
  std::vector<Pass> passes;  // what the aggregator's results carry, in the order of the chunks

  [[nodiscard]] uint64_t chunks(size_t payload_bytes) const;
  [[nodiscard]] std::span<const uint8_t> chunk(uint64_t index, size_t payload_bytes) const;
  // What results carry for a part of whole blocks of the tensor.
  [[nodiscard]] Reference part(uint64_t first_element, uint64_t elements) const;
};

[[nodiscard]] size_t element_bytes(const CollectivePlan& plan);

// The tensor of `rank` before the collective.
[[nodiscard]] std::vector<uint8_t> make_input(const CollectivePlan& plan, uint32_t rank);

// Who adds for whom: a rank, or an aggregator whose children are in the order of the sum.
struct FoldNode {
  uint32_t rank = 0;               // of an aggregator: the lowest below it
  std::vector<FoldNode> children;  // none: a rank
};

// Left folds of the inputs along the tree `root`; for fixed32 the sum of the quantised inputs.
[[nodiscard]] Reference make_reference(const CollectivePlan& plan, uint32_t ranks,
                                       const FoldNode& root);

}  // namespace netfold
