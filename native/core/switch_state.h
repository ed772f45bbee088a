// What a switch remembers of jobs, groups, members and slots. Private to the switch engine.
#pragma once

#include "core/children.h"
#include "core/switch.h"

namespace netfold {

inline constexpr Nanos kHousePeriod = 100 * kMillisecond;

struct Switch::Member {
  uint64_t nonce = 0;
  Nanos last_heard = 0;
  uint32_t last_request = 0;
  uint32_t collective = 0;  // the last it submitted
  uint64_t watermark = 0;   // it has the results of all chunks below
  // Of its last Heartbeat: fingerprints up to its last collective then, the newest first.
  uint32_t told = 0;
  uint32_t fingerprints_told = 0;
  uint64_t fingerprints[NF_HEARTBEAT_FINGERPRINTS] = {};
  uint16_t payload_bytes_max = 0;
  uint16_t window_max = 0;
  bool came_again = false;  // with a watermark and phases of the epoch before
  Phases phases;
};

struct Switch::Job {
  std::string name;
  uint64_t incarnation = 0;
  Key key{};
  std::map<uint64_t, std::unique_ptr<Group>> groups;
};

struct Switch::Group {
  Job* job = nullptr;
  uint64_t id = 0;
  uint16_t size = 0;
  uint8_t refusal = 0;  // decided once for all members
  bool settled = false;
  bool broken = false;
  bool closed = false;  // slots are released; what remains answers who broke it
  uint32_t stream = 0;
  uint32_t epoch = 1;
  uint64_t first_chunk = 0;
  Phases phases;  // where slots begin, after the first epoch
  Nanos opened_at = 0;
  uint64_t joined = 0;
  uint64_t left = 0;
  uint64_t dead = 0;
  std::vector<Member> members;
  std::vector<Address> addresses;
  uint16_t payload_bytes = 0;
  uint16_t window = 0;
  uint64_t memory_bytes = 0;
  Slots slots;
  Children children;         // of a settled group
  uint64_t known_chunk = 0;  // the newest that a Probe from below spoke of, and
  uint64_t known = 0;        // the ranks that switches below have of it
  Breakage breakage{};
  uint64_t unacknowledged = 0;
  uint32_t announcements = 0;
  Nanos announce_due = kNever;
  Nanos ended_at = 0;

  // Whether `chunk` may be the first on its slot.
  [[nodiscard]] bool may_begin_with(uint64_t chunk) const {
    if (epoch == 1) return chunk - first_chunk < slots.size();
    return (chunk / slots.size() & 3) == phases.of(nf_slot_index(chunk, slots.size()));
  }
  [[nodiscard]] uint64_t target() const { return all_of(size); }
  [[nodiscard]] uint64_t present() const { return joined & ~left & ~dead; }
};

}  // namespace netfold
