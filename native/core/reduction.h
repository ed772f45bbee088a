// One collective as the chunks of a lane: what each carries, and what its result does.
//
// A plain collective is its tensor, cut into chunks. fixed32 comes in three passes: the heads of
// all blocks (MAX), the values as integers (SUM), and, only where a block has NaN or infinities on
// some rank, the classes of its elements (BOR). A chunk of values may go when the heads of its
// blocks are agreed; how many chunks of classes there are is known when all heads are.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "core/types.h"

namespace netfold {

struct Collective {
  uint8_t* data = nullptr;       // reduced in place; null: counted, for a simulator
  uint64_t elements = 0;         // at least 1
  uint64_t tensor_elements = 0;  // of the whole, where this is a lane's part of it; 0: `elements`
  uint8_t op = NF_OP_SUM;
  uint8_t dtype = NF_DTYPE_FLOAT32;         // of `data`
  uint8_t tensor_dtype = NF_DTYPE_FLOAT32;  // of the application's tensor, where that was widened
  uint8_t mode = NF_MODE_FLOAT32;           // fixed32: SUM and AVG of float32
  Nanos deadline = kNever;
};

// What ranks must agree on; `kind` is NF_KIND_*.
[[nodiscard]] uint64_t fingerprint_of(const Collective& what, uint8_t kind = NF_KIND_ALL_REDUCE);

class Reduction {
 public:
  struct Chunk {
    uint8_t op;
    uint8_t dtype;
    uint16_t elements;
    size_t bytes;
  };

  Reduction(const Collective& what, uint32_t ranks, uint32_t payload_bytes);

  // Chunks are numbered from 0. More come when the heads are agreed, until size_known().
  [[nodiscard]] uint64_t chunks() const { return chunks_; }
  [[nodiscard]] bool size_known() const { return heads_missing_ == 0; }
  // Whether what the chunk carries is known yet.
  [[nodiscard]] bool can_send(uint64_t index) const;
  [[nodiscard]] Chunk chunk(uint64_t index) const;

  // This rank's payload, at `staging` (of the chunk's bytes) or in the tensor; null where counted.
  [[nodiscard]] const uint8_t* contribution(uint64_t index, uint8_t* staging) const;
  // The result of a chunk, null where counted. Returns the bytes of the tensor it finished.
  size_t take(uint64_t index, const uint8_t* result);
  // What is left when all results are in.
  void finish();

 private:
  struct Pass {
    uint8_t op = 0;
    uint8_t dtype = 0;
    uint32_t per_chunk = 1;  // elements
    uint64_t elements = 0;
    uint64_t chunks = 0;
  };
  enum Part : uint8_t { kHeads, kValues, kClasses, kParts };
  struct Place {
    Part part;
    uint64_t in_part;  // number of the chunk there
    uint64_t first;    // element
    uint16_t elements;
  };
  using Classes = std::array<uint8_t, NF_FIXED_CLASS_BYTES>;

  [[nodiscard]] Pass pass_of(uint8_t op, uint8_t dtype, uint64_t elements) const;
  [[nodiscard]] Place place_of(uint64_t index) const;
  [[nodiscard]] size_t block_elements(uint64_t block) const;
  [[nodiscard]] uint8_t* block_values(uint64_t block) const;
  void take_heads(const Place& place, const uint8_t* result);
  template <typename Function>
  void each_block(const Place& place, Function function) const;

  Collective what_;
  uint32_t ranks_;
  uint32_t payload_bytes_;
  uint32_t element_bytes_;
  bool fixed_;
  Pass passes_[kParts];
  uint64_t chunks_ = 0;
  uint64_t heads_missing_ = 0;           // chunks of heads without a result
  std::vector<bool> heads_known_;        // by chunk of heads
  std::vector<uint8_t> heads_;           // agreed
  std::map<uint64_t, Classes> special_;  // blocks with NaN or infinities on any rank
  std::vector<uint8_t> classes_;         // of all of them, ours and then the agreed ones
};

}  // namespace netfold
