#include "sim/checkers.h"

#include <algorithm>
#include <bit>

namespace netfold {
namespace {

constexpr uint8_t kGuard = 0xA5;

std::string describe(const Breakage& b) {
  return "cause " + std::to_string(b.cause) + " ranks " + std::to_string(b.ranks) + " chunk " +
         std::to_string(b.chunk) + " collective " + std::to_string(b.collective);
}

bool same(const Breakage& a, const Breakage& b) {
  return a.cause == b.cause && a.ranks == b.ranks && a.chunk == b.chunk && a.added == b.added &&
         a.collective == b.collective && a.rank_a == b.rank_a && a.rank_b == b.rank_b &&
         a.fingerprint_a == b.fingerprint_a && a.fingerprint_b == b.fingerprint_b;
}

// Faults that can make a live member silent for a lease, or the switch for a worker.
bool may_silence(const Scenario& scenario) {
  return scenario.has(kFaultLoss | kFaultBurst | kFaultOneWay | kFaultPartition | kFaultCorrupt |
                      kFaultSwitchFreeze | kFaultSwitchDeath | kFaultRebind);
}

bool cause_is_allowed(const Scenario& scenario, const GroupPlan& group, uint8_t cause) {
  const auto* first = scenario.workers.data() + group.first_worker;
  const auto* last = first + group.size;
  switch (cause) {
    case NF_CAUSE_GONE:  // who has left takes a shard away
      return scenario.shards() || may_silence(scenario) ||
             scenario.has(kFaultFrozen | kFaultDeath | kFaultQuit | kFaultAbort | kFaultTimeout |
                          kFaultMismatch | kFaultDrain);
    case NF_CAUSE_MISMATCH:
      return scenario.has(kFaultMismatch);
    case NF_CAUSE_TIMEOUT:
      return std::any_of(first, last, [](const WorkerPlan& w) { return w.timeout != 0; });
    case NF_CAUSE_ABORT:
      return scenario.has(kFaultAbort);
    case NF_CAUSE_DRAIN:
      return scenario.has(kFaultDrain);
    case NF_CAUSE_AGGREGATOR_LOST:
      return may_silence(scenario);
    default:
      return false;
  }
}

std::string check_breakage(const Scenario& scenario, const GroupPlan& group, const Fate& fate) {
  const Breakage& breakage = fate.breakage;
  const std::string who = "rank " + std::to_string(fate.rank) + ": " + describe(breakage);
  if (!cause_is_allowed(scenario, group, breakage.cause)) return who + ": no fault explains it";
  if (breakage.cause != NF_CAUSE_MISMATCH) return "";
  for (uint32_t rank = 0; rank < group.size; ++rank) {
    if (scenario.workers[group.first_worker + rank].odd_sequence == kNoSequence) continue;
    if (breakage.rank_a == rank || breakage.rank_b == rank) return "";
  }
  return who + ": a mismatch that does not name the odd rank";
}

}  // namespace

GuardedTensor::GuardedTensor(const CollectivePlan& what, uint32_t rank) : plan(what) {
  const std::vector<uint8_t> input = make_input(what, rank);
  bytes.assign(input.size() + 2 * kGuardBytes, kGuard);
  std::copy(input.begin(), input.end(), bytes.begin() + kGuardBytes);
}

std::string GuardedTensor::check_guards() const {
  for (size_t i = 0; i < kGuardBytes; ++i)
    if (bytes[i] != kGuard || bytes[bytes.size() - 1 - i] != kGuard)
      return "bytes beside the tensor were written";
  return "";
}

std::string GuardedTensor::check_result(const std::vector<uint8_t>& reference) const {
  const auto from = bytes.begin() + kGuardBytes;
  const auto wrong = std::mismatch(reference.begin(), reference.end(), from);
  if (wrong.first == reference.end()) return check_guards();
  return "wrong sum at byte " + std::to_string(wrong.first - reference.begin()) + " of " +
         std::to_string(reference.size());
}

std::string check_heads(const nf_slot_head* heads, uint32_t size) {
  const uint64_t all = size == 64 ? ~uint64_t{0} : (uint64_t{1} << size) - 1;
  for (int v = 0; v < 2; ++v) {
    const nf_slot_head& head = heads[v];
    const bool complete = head.state == NF_SLOT_COMPLETE;
    if ((head.added & ~all) != 0) return "a slot holds a rank that is no member";
    if (head.ranks != static_cast<uint32_t>(std::popcount(head.added)))
      return "a slot's count differs from its bitmap";
    if (head.state != NF_SLOT_EMPTY && complete != (head.added == all))
      return "a slot is complete without all, or has all and is not complete";
    if ((head.received & ~head.added) != 0) return "a rank holds a result it is not in";
  }
  const bool both_collect =
      heads[0].state == NF_SLOT_COLLECTING && heads[1].state == NF_SLOT_COLLECTING;
  return both_collect ? "both versions of a slot collect" : "";
}

std::string check_outcomes(const Scenario& scenario, uint32_t index,
                           const std::vector<Fate>& fates) {
  const GroupPlan& group = scenario.groups[index];
  // What a dead aggregator had completed or decided, some have heard and others never will.
  const bool aggregator_died =
      scenario.has(kFaultSwitchDeath | kFaultRestart) ||
      (scenario.shards() &&
       (scenario.has(kFaultDeath | kFaultQuit | kFaultFrozen) || may_silence(scenario)));
  const auto agree = [&](const Breakage& a, const Breakage& b) {
    if (!aggregator_died) return same(a, b);
    // What a switch had decided before it lost its state, not all have heard.
    if (scenario.has(kFaultRestart)) return true;
    // Where shards cannot reach each other, each side names the other.
    const bool split = scenario.shards() && scenario.has(kFaultPartition);
    return a.cause == b.cause && (split || a.ranks == b.ranks);
  };
  const Fate* broken = nullptr;
  bool broken_at_all = false;
  for (const Fate& fate : fates) {
    broken_at_all |= fate.breakage.cause != 0;
    // Who gave up before it was in the group has a reason of its own.
    if (fate.excused || !fate.settled || fate.breakage.cause == 0) continue;
    const std::string wrong = check_breakage(scenario, group, fate);
    if (!wrong.empty()) return wrong;
    const bool alone = fate.breakage.cause == NF_CAUSE_AGGREGATOR_LOST;
    if (broken != nullptr && !alone && !agree(fate.breakage, broken->breakage))
      return "rank " + std::to_string(fate.rank) + " says " + describe(fate.breakage) + ", rank " +
             std::to_string(broken->rank) + " " + describe(broken->breakage);
    if (!alone) broken = &fate;
  }
  if (aggregator_died && broken_at_all) return "";
  for (size_t s = 0; s < group.collectives.size(); ++s) {
    const Fate* ok = nullptr;
    const Fate* failed = nullptr;
    for (const Fate& fate : fates) {
      if (fate.excused || fate.breakage.cause == NF_CAUSE_AGGREGATOR_LOST) continue;
      if (fate.outcomes[s] == Outcome::pending)
        return "rank " + std::to_string(fate.rank) + " has no outcome of collective " +
               std::to_string(s + 1);
      if (fate.outcomes[s] == Outcome::ok) ok = &fate;
      if (fate.outcomes[s] == Outcome::failed) failed = &fate;
      const bool complete = fate.outcomes[s] == Outcome::ok;
      const bool skipped_alone =
          scenario.workers[group.first_worker + fate.rank].odd_sequence == s + 1;
      if (!complete && fate.breakage.cause == 0 && fate.settled && !skipped_alone)
        return "rank " + std::to_string(fate.rank) + " did not do collective " +
               std::to_string(s + 1) + " though nothing broke";
    }
    if (ok != nullptr && failed != nullptr)
      return "collective " + std::to_string(s + 1) + " is done on rank " +
             std::to_string(ok->rank) + " and failed on rank " + std::to_string(failed->rank);
  }
  return "";
}

}  // namespace netfold
