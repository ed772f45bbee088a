// The simulated network: every worker's endpoint has one path into the network and one out of it,
// each with faults; a switch is in the network.
//
// A network with rates and queues takes this one's place behind the same send().
#pragma once

#include <deque>
#include <map>
#include <span>
#include <vector>

#include "sim/random.h"
#include "sim/timeline.h"

namespace netfold {

// Endpoints below are switches, those from it on workers.
inline constexpr uint16_t kSwitchesMax = 4;

// An endpoint changes its binding when a NAT on the way gives it another source address.
[[nodiscard]] Address make_address(uint16_t endpoint, uint16_t binding);
[[nodiscard]] uint16_t endpoint_of(const Address& address);
[[nodiscard]] uint16_t binding_of(const Address& address);

struct Interval {
  Nanos from = 0;
  Nanos until = 0;
};

// What one direction does to a datagram. Probabilities are per million.
struct PathFaults {
  Nanos delay = 20 * kMicrosecond;
  Nanos jitter_max = 0;
  uint32_t loss = 0;
  uint32_t burst = 0;  // that a burst of loss begins
  Nanos burst_max = 0;
  std::vector<Interval> blackouts;  // nothing passes
  uint32_t duplicate = 0;
  Nanos duplicate_delay_max = 0;
  uint32_t reorder = 0;
  Nanos reorder_delay_max = 0;
  uint32_t corrupt = 0;  // one to three flipped bits
};

struct Packet {
  Address from;
  Address to;
  std::vector<uint8_t> bytes;
  bool corrupted = false;
  bool forged = false;  // no engine sent it
};

struct NetworkCounters {
  uint64_t sent = 0, lost = 0, duplicated = 0, reordered = 0, corrupted = 0, misdirected = 0;
};

class Network {
 public:
  // Deliveries appear on `timeline` as events of `deliver_kind` with the packet's index.
  Network(Timeline* timeline, uint32_t deliver_kind, uint64_t seed);

  // The next worker's endpoint.
  uint16_t add_endpoint(const PathFaults& up, const PathFaults& down);

  // The link between switch `number` and its parent, which has a lower number; without one it only
  // takes no time.
  void add_link(uint16_t number, const PathFaults& up, const PathFaults& down);

  [[nodiscard]] Address address(uint16_t endpoint) const;
  void rebind(uint16_t endpoint);

  // One datagram. What becomes of it is on the timeline.
  void send(const Address& from, const Address& to, std::span<const uint8_t> head,
            std::span<const uint8_t> payload);
  // A datagram nobody sent, `from` whatever it claims; it arrives after `delay`.
  void inject(Nanos delay, const Address& from, const Address& to, std::span<const uint8_t> bytes);

  // From now on paths only delay.
  void heal() { healed_ = true; }
  [[nodiscard]] bool healed() const { return healed_; }

  [[nodiscard]] const Packet& packet(uint32_t index) const { return packets_[index]; }
  void release(uint32_t index) { free_.push_back(index); }

  [[nodiscard]] const NetworkCounters& counters() const { return counters_; }

 private:
  struct Direction {
    PathFaults faults;
    Random random;
    Nanos burst_until = 0;
    Nanos last_arrival = 0;
  };
  struct Endpoint {
    Direction up;
    Direction down;
    uint16_t binding = 0;
  };

  [[nodiscard]] Endpoint* worker(uint16_t endpoint);
  [[nodiscard]] std::vector<Direction*> legs(uint16_t from, uint16_t to);
  [[nodiscard]] bool lost(Direction* direction);
  [[nodiscard]] Nanos arrival(Direction* direction, Nanos departure, bool copy);
  void corrupt(Direction* direction, Packet* packet);
  [[nodiscard]] uint32_t allocate();

  Timeline* const timeline_;
  const uint32_t deliver_kind_;
  const uint64_t seed_;
  bool healed_ = false;
  std::vector<Endpoint> endpoints_;     // of workers
  std::map<uint16_t, Endpoint> links_;  // of switches to their parents
  std::deque<Packet> packets_;          // a delivery may send: references stay valid
  std::vector<uint32_t> free_;
  NetworkCounters counters_;
};

}  // namespace netfold
