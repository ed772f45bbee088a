#include "sim/network.h"

#include <algorithm>

namespace netfold {

Address make_address(uint16_t endpoint, uint16_t binding) {
  Address address;
  address.size = 4;
  address.bytes[0] = static_cast<uint8_t>(endpoint >> 8);
  address.bytes[1] = static_cast<uint8_t>(endpoint);
  address.bytes[2] = static_cast<uint8_t>(binding >> 8);
  address.bytes[3] = static_cast<uint8_t>(binding);
  return address;
}

uint16_t endpoint_of(const Address& address) {
  return static_cast<uint16_t>(address.bytes[0] << 8 | address.bytes[1]);
}

uint16_t binding_of(const Address& address) {
  return static_cast<uint16_t>(address.bytes[2] << 8 | address.bytes[3]);
}

Network::Network(Timeline* timeline, uint32_t deliver_kind, uint64_t seed)
    : timeline_(timeline), deliver_kind_(deliver_kind), seed_(seed) {}

uint16_t Network::add_endpoint(const PathFaults& up, const PathFaults& down) {
  const uint64_t index = endpoints_.size();
  endpoints_.push_back({{up, Random(derive_seed(seed_, 2 * index)), 0, 0},
                        {down, Random(derive_seed(seed_, 2 * index + 1)), 0, 0},
                        0});
  return static_cast<uint16_t>(kSwitchesMax + endpoints_.size() - 1);
}

void Network::add_link(uint16_t number, const PathFaults& up, const PathFaults& down) {
  const uint64_t index = 1000 + number;
  links_.insert({number, Endpoint{{up, Random(derive_seed(seed_, 2 * index)), 0, 0},
                                  {down, Random(derive_seed(seed_, 2 * index + 1)), 0, 0},
                                  0}});
}

// Null for a switch.
Network::Endpoint* Network::worker(uint16_t endpoint) {
  return endpoint < kSwitchesMax ? nullptr : &endpoints_[endpoint - kSwitchesMax];
}

Address Network::address(uint16_t endpoint) const {
  if (endpoint < kSwitchesMax) return make_address(endpoint, 0);
  return make_address(endpoint, endpoints_[endpoint - kSwitchesMax].binding);
}

void Network::rebind(uint16_t endpoint) {
  ++worker(endpoint)->binding;
}

void Network::send(const Address& from, const Address& to, std::span<const uint8_t> head,
                   std::span<const uint8_t> payload) {
  const std::vector<Direction*> way = legs(endpoint_of(from), endpoint_of(to));
  ++counters_.sent;
  bool twice = false;
  for (Direction* leg : way) {
    if (lost(leg)) {
      ++counters_.lost;
      return;
    }
    twice |= !healed_ && leg->random.chance(leg->faults.duplicate);
  }
  for (int copy = 0; copy <= int{twice}; ++copy) {
    const uint32_t index = allocate();
    Packet& packet = packets_[index];
    packet.from = from;
    packet.to = to;
    packet.bytes.assign(head.begin(), head.end());
    packet.bytes.insert(packet.bytes.end(), payload.begin(), payload.end());
    Nanos at = timeline_->now();
    for (Direction* leg : way) {
      if (!packet.corrupted) corrupt(leg, &packet);
      at = arrival(leg, at, copy == 1);
    }
    timeline_->add(at, deliver_kind_, index);
  }
  counters_.duplicated += twice;
}

std::vector<Network::Direction*> Network::legs(uint16_t from, uint16_t to) {
  std::vector<Direction*> found;
  if (from < kSwitchesMax && to < kSwitchesMax) {
    const auto link = links_.find(std::max(from, to));
    if (link != links_.end()) found.push_back(from > to ? &link->second.up : &link->second.down);
    return found;
  }
  if (Endpoint* sender = worker(from)) found.push_back(&sender->up);
  if (Endpoint* receiver = worker(to)) found.push_back(&receiver->down);
  return found;
}

void Network::inject(Nanos delay, const Address& from, const Address& to,
                     std::span<const uint8_t> bytes) {
  const uint32_t index = allocate();
  Packet& packet = packets_[index];
  packet.from = from;
  packet.to = to;
  packet.bytes.assign(bytes.begin(), bytes.end());
  packet.forged = true;
  timeline_->add(timeline_->now() + delay, deliver_kind_, index);
}

bool Network::lost(Direction* direction) {
  if (healed_) return false;
  const Nanos now = timeline_->now();
  const PathFaults& faults = direction->faults;
  for (const Interval& blackout : faults.blackouts) {
    if (now >= blackout.from && now < blackout.until) return true;
  }
  if (now < direction->burst_until) return true;
  if (direction->random.chance(faults.burst)) {
    direction->burst_until = now + direction->random.between(1, faults.burst_max);
    return true;
  }
  return direction->random.chance(faults.loss);
}

Nanos Network::arrival(Direction* direction, Nanos departure, bool copy) {
  const PathFaults& faults = direction->faults;
  Nanos at = departure + faults.delay + direction->random.between(0, faults.jitter_max);
  if (copy) return at + direction->random.between(0, faults.duplicate_delay_max);
  if (!healed_ && direction->random.chance(faults.reorder)) {
    ++counters_.reordered;
    return at + direction->random.between(0, faults.reorder_delay_max);
  }
  at = std::max(at, direction->last_arrival);  // jitter alone does not reorder
  direction->last_arrival = at;
  return at;
}

void Network::corrupt(Direction* direction, Packet* packet) {
  if (healed_ || !direction->random.chance(direction->faults.corrupt)) return;
  packet->corrupted = true;
  ++counters_.corrupted;
  // Three flips at distinct places are what CRC32C is sure to see.
  const uint64_t bits = packet->bytes.size() * 8;
  const uint64_t flips = 1 + direction->random.below(3);
  uint64_t bit = direction->random.below(bits);
  for (uint64_t flip = 0; flip < flips; ++flip) {
    packet->bytes[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    bit = (bit + 1 + direction->random.below(bits / 4)) % bits;
  }
}

uint32_t Network::allocate() {
  if (free_.empty()) {
    packets_.emplace_back();
    return static_cast<uint32_t>(packets_.size() - 1);
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  packets_[index].corrupted = packets_[index].forged = false;
  return index;
}

}  // namespace netfold
