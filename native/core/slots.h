// The slots of one group at one aggregator: heads, sums, and the order in which they are added.
#pragma once

#include <memory>
#include <vector>

#include "core/packet.h"
#include "core/slot.h"

namespace netfold {

struct SlotVersion {
  uint64_t chunk = 0;
  uint64_t fingerprint = 0;
  uint32_t collective = 0;
  uint32_t counter = 0;  // transmission of the last contributor's packet
  uint16_t elements = 0;
  uint16_t first_rank = 0;
  uint16_t added = 0;      // children in the sum
  uint16_t fold_next = 0;  // those before are in the sum, where their order counts
  uint8_t op = 0;
  uint8_t dtype = 0;
  bool counted = false;  // a simulator's packets without bytes
  bool final = false;    // the sum is the result, from a worker's copy

  [[nodiscard]] size_t bytes() const { return elements * dtype_bytes(dtype); }
};

struct Slot {
  nf_slot_head heads[2] = {};
  SlotVersion versions[2];
  uint8_t* sums[2] = {};
  uint64_t early_children = 0;  // of the version that collects: kept aside for the order
  std::unique_ptr<uint8_t[]> early;
};

class Slots {
 public:
  // What `window` slots for `children` take at most.
  [[nodiscard]] static uint64_t memory_bytes(uint64_t window, uint64_t children, uint64_t payload);

  void open(size_t window, size_t children, size_t payload_bytes);
  void close();

  [[nodiscard]] bool empty() const { return slots_.empty(); }
  [[nodiscard]] uint32_t size() const { return static_cast<uint32_t>(slots_.size()); }
  [[nodiscard]] Slot& of(uint64_t chunk) { return slots_[nf_slot_index(chunk, size())]; }
  [[nodiscard]] const Slot& of(uint64_t chunk) const {
    return slots_[nf_slot_index(chunk, size())];
  }
  [[nodiscard]] auto begin() const { return slots_.begin(); }
  [[nodiscard]] auto end() const { return slots_.end(); }

  // Adds the elements of child number `child` to a version whose head has counted them already.
  void add(Slot* slot, uint32_t index, uint16_t child, const uint8_t* payload);
  // The result itself, which one who has it sends in place of a contribution.
  static void replace(Slot* slot, uint32_t index, const uint8_t* payload);

 private:
  size_t children_ = 0;
  size_t stride_ = 0;
  std::vector<Slot> slots_;
  std::unique_ptr<uint8_t[]> sums_;
};

}  // namespace netfold
