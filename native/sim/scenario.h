// Everything one run does, drawn from its seed before it starts.
#pragma once

#include <string>
#include <vector>

#include "core/switch.h"
#include "core/worker.h"
#include "sim/network.h"
#include "sim/reference.h"

namespace netfold {

// Bits of Scenario::faults; fault_names() lists them in this order.
enum Fault : uint32_t {
  kFaultLoss = 1u << 0,
  kFaultBurst = 1u << 1,
  kFaultOneWay = 1u << 2,  // one direction of a worker is dark for less than the lease
  kFaultDuplicate = 1u << 3,
  kFaultReorder = 1u << 4,
  kFaultCorrupt = 1u << 5,
  kFaultDelay = 1u << 6,
  kFaultLate = 1u << 7,    // ranks submit long after the others
  kFaultFreeze = 1u << 8,  // an engine gets no calls, for less than the lease
  kFaultForge = 1u << 9,
  kFaultDouble = 1u << 10,  // a second engine with a rank that is taken
  kFaultRebind = 1u << 11,
  kFaultSwitchFreeze = 1u << 12,
  // Those below may break the group.
  kFaultFrozen = 1u << 13,  // longer than the lease
  kFaultPartition = 1u << 14,
  kFaultDeath = 1u << 15,
  kFaultTimeout = 1u << 16,
  kFaultAbort = 1u << 17,
  kFaultMismatch = 1u << 18,
  kFaultQuit = 1u << 19,  // a rank leaves while others still need it
  kFaultSwitchDeath = 1u << 20,
  kFaultDrain = 1u << 21,
  // A switch loses all its state and is back within the lease.
  kFaultRestart = 1u << 22,
};
inline constexpr uint32_t kFaultCount = 23;
inline constexpr uint32_t kNetworkFaults = kFaultLoss | kFaultBurst | kFaultOneWay |
                                           kFaultDuplicate | kFaultReorder | kFaultCorrupt |
                                           kFaultDelay | kFaultPartition;

[[nodiscard]] const char* fault_name(uint32_t index);

inline constexpr uint32_t kNoSequence = UINT32_MAX;

// `after` the worker has submitted collective `sequence`; 0: after its engine was made.
struct Trigger {
  uint32_t sequence = kNoSequence;
  Nanos after = 0;
  Nanos length = 0;  // of a pause or freeze
};

enum class Oddity : uint8_t { op, dtype, elements, skip };

struct WorkerPlan {
  uint32_t group = 0;  // index in Scenario::groups
  WorkerConfig config;
  uint16_t attached_to = 0;  // in a tree: number of the switch
  Nanos join_at = 0;
  uint32_t depth = 1;  // collectives it keeps outstanding
  Nanos think_max = 0;
  Nanos leave_after = 0;
  bool scribbles = false;  // the application overwrites a tensor once it has the outcome
  Nanos timeout = 0;       // of every collective; 0: none
  PathFaults up;
  PathFaults down;
  std::vector<Trigger> pauses;  // before the submission after `sequence`
  std::vector<Trigger> freezes;
  std::vector<Trigger> rebinds;
  Trigger death;
  Trigger abort;
  Trigger quit;
  Trigger double_start;
  uint32_t odd_sequence = kNoSequence;  // where it believes something else than the others
  Oddity oddity = Oddity::op;
};

struct GroupPlan {
  uint32_t first_worker = 0;  // index in Scenario::workers; ranks follow in order
  uint32_t size = 0;
  std::vector<CollectivePlan> collectives;  // sequence s at s - 1
};

struct ForgerPlan {
  uint32_t packets = 0;
  Nanos interval_max = 0;
  bool blind = false;  // never sees a real packet
};

struct Scenario {
  uint64_t seed = 0;
  uint32_t faults = 0;
  SwitchConfig switch_config;  // of every aggregator; their random values differ
  uint32_t switches = 1;       // 0: a shard with every worker
  // A tree: numbers of the parents of the switches from 1 on, each below its own; 0 is the root.
  std::vector<uint16_t> parents;
  std::vector<PathFaults> links_up;  // from these to their parents, and back
  std::vector<PathFaults> links_down;
  std::vector<GroupPlan> groups;
  std::vector<WorkerPlan> workers;
  ForgerPlan forger;
  Nanos wake_jitter_max = 0;  // drivers call handle_timeout late by up to this
  Nanos heal_at = 0;
  uint32_t troubled_switch = 0;  // the one that freezes, dies or drains
  Nanos switch_freeze_at = kNever;
  Nanos switch_freeze_length = 0;
  Nanos switch_dies_at = kNever;
  std::vector<std::pair<Nanos, Nanos>> restarts;  // of `troubled_switch`: when, and for how long
  Nanos drain_at = kNever;

  [[nodiscard]] bool has(uint32_t faults_of) const { return (faults & faults_of) != 0; }
  [[nodiscard]] bool tree() const { return !parents.empty(); }
  // In what order the inputs of a group are added.
  [[nodiscard]] FoldNode fold_tree(const GroupPlan& group, uint16_t at = 0) const;
  [[nodiscard]] bool shards() const { return switches == 0; }
  [[nodiscard]] Nanos lease() const { return switch_config.lease; }
};

// `fault_list`: names separated by commas, "none", or "" for a draw; false if a name is unknown.
[[nodiscard]] bool draw_scenario(uint64_t seed, uint32_t workers, uint32_t collectives,
                                 const std::string& fault_list, Scenario* out);

// What `plan` is in the eyes of `worker`, who may be the odd one.
[[nodiscard]] CollectivePlan believed_plan(const Scenario& scenario, const WorkerPlan& worker,
                                           uint32_t sequence);

// "loss dup late …" or "none".
[[nodiscard]] std::string describe_faults(uint32_t faults);

}  // namespace netfold
