// What must hold in every run, computed outside the code under test. Each check returns "" or what
// is wrong.
#pragma once

#include <string>
#include <vector>

#include "core/slot.h"
#include "sim/scenario.h"

namespace netfold {

// A tensor with guard bytes around it, and what must come out.
struct GuardedTensor {
  CollectivePlan plan;
  std::vector<uint8_t> bytes;  // guard, tensor, guard
  static constexpr size_t kGuardBytes = 32;

  GuardedTensor(const CollectivePlan& plan, uint32_t rank);
  [[nodiscard]] uint8_t* data() { return bytes.data() + kGuardBytes; }
  [[nodiscard]] std::string check_guards() const;
  [[nodiscard]] std::string check_result(const std::vector<uint8_t>& reference) const;
};

enum class Outcome : uint8_t { none, pending, ok, failed };

// What became of one worker.
struct Fate {
  uint32_t rank = 0;
  bool excused = false;  // dead, stopped or cut off beyond the lease, or gone by itself
  bool settled = false;
  std::vector<Outcome> outcomes;  // of collective s at s - 1
  Breakage breakage{};
};

[[nodiscard]] std::string check_heads(const nf_slot_head* heads, uint32_t size);
// Invariant 6: the same outcome on all survivors, and the same reason for it.
[[nodiscard]] std::string check_outcomes(const Scenario& scenario, uint32_t group,
                                         const std::vector<Fate>& fates);

}  // namespace netfold
