#include "core/member.h"

#include <algorithm>
#include <bit>

#include "core/bytes.h"
#include "core/partition.h"

namespace netfold {
namespace {

// Requests of lanes are told apart by their ids, so lanes start far from each other.
constexpr uint32_t kRequestsPerLane = 1 << 24;

// No network gives an address of one byte.
Address own_address() {
  Address address;
  address.size = 1;
  return address;
}

bool is_own(const Address& address) {
  return address.size == 1;
}

Datagram datagram_of(const Transmit& transmit) {
  const bool control = transmit.head_bytes > NF_HEADER_BYTES;
  return {transmit.head, control ? transmit.head + NF_HEADER_BYTES : transmit.payload,
          control ? transmit.head_bytes - NF_HEADER_BYTES : transmit.payload_bytes};
}

bool answers_a_request(uint8_t type) {
  return type == NF_TYPE_COOKIE || type == NF_TYPE_JOINED || type == NF_TYPE_REFUSED;
}

bool is_for_aggregators(uint8_t type) {
  return type == NF_TYPE_HELLO || type == NF_TYPE_JOIN || type == NF_TYPE_DATA ||
         type == NF_TYPE_PROBE || type == NF_TYPE_HEARTBEAT || type == NF_TYPE_LEAVE;
}

// The order in which one reason is preferred to another, where lanes broke for different ones: what
// an aggregator decided is the same on all ranks, a worker's own verdict may not be.
int precedence(uint8_t cause) {
  constexpr uint8_t kOrder[] = {NF_CAUSE_MISMATCH, NF_CAUSE_GONE, NF_CAUSE_TIMEOUT, NF_CAUSE_ABORT,
                                NF_CAUSE_DRAIN};
  const auto* found = std::find(std::begin(kOrder), std::end(kOrder), cause);
  return static_cast<int>(found - std::begin(kOrder));
}

}  // namespace

Key lane_key(const Key& key, uint32_t lane) {
  const auto half = [&](uint32_t which) {
    uint8_t bytes[8];
    store_be(bytes, lane);
    store_be(bytes + 4, which);
    return siphash(key, bytes, sizeof bytes);
  };
  return {half(0), half(1)};
}

Member::Member(const MemberConfig& config, Nanos now) : config_(config) {
  if (config.has_shard) shard_ = std::make_unique<Switch>(config.shard, now);
}

WorkerConfig Member::lane_config(uint32_t index, const Aggregator& aggregator) const {
  WorkerConfig lane = config_.worker;
  lane.key = lane_key(lane.key, index);
  lane.incarnation += index;  // two lanes may lead to one switch
  lane.first_request += index * kRequestsPerLane;
  lane.payload_bytes_max = aggregator.payload_bytes_max;
  lane.window_max = aggregator.window_max;
  lane.rejoins = aggregator.host_rank == Aggregator::kNobody;  // a shard ends with its rank
  return lane;
}

void Member::connect(Nanos now, const std::vector<Aggregator>& aggregators) {
  for (uint32_t index = 0; index < aggregators.size(); ++index) {
    const WorkerConfig config = lane_config(index, aggregators[index]);
    lanes_.push_back({.aggregator = aggregators[index],
                      .key = config.key,
                      .worker = Worker(config, now),
                      .first_request = config.first_request});
    if (aggregators[index].host_rank == config.rank) own_ = &lanes_.back();
  }
  end_turn(now);
}

// --- packets ------------------------------------------------------------------------------------

void Member::handle_packet(Nanos now, const Address& from, const Datagram& datagram) {
  begin_turn();
  const uint8_t type = datagram.header[NF_OFFSET_TYPE];
  Lane* lane = is_for_aggregators(type) ? nullptr : lane_for(datagram);
  if (lane != nullptr)
    lane->worker.handle_packet(now, datagram);
  else if (shard_ != nullptr)
    shard_->handle_packet(now, from, datagram);
  else if (!lanes_.empty())
    lanes_.front().worker.handle_packet(now, datagram);  // it counts what is wrong with it
  end_turn(now);
}

// Identity is key and stream, or the request that is answered, never where a packet came from.
Member::Lane* Member::lane_for(const Datagram& datagram) {
  if (lanes_.size() == 1 && shard_ == nullptr) return &lanes_.front();
  const uint8_t* header = datagram.header;
  const auto stream = load_be<uint32_t>(header + NF_OFFSET_STREAM);
  const auto request = load_be<uint32_t>(header + NF_OFFSET_COUNTER);
  const bool answer = answers_a_request(header[NF_OFFSET_TYPE]);
  for (Lane& lane : lanes_) {
    if (&lane == own_) continue;  // its packets do not come from outside
    if (answer && request - lane.first_request < kRequestsPerLane) return &lane;
    const uint32_t known = lane.worker.settlement().stream;
    const bool possible = !answer && (known == stream || known == 0);
    if (possible && tag_is_valid(header, lane.key)) return &lane;
  }
  return nullptr;
}

void Member::begin_turn() {
  outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<ptrdiff_t>(sent_));
  sent_ = 0;
}

// Lets our lane and our shard talk until both have heard all, and takes what lanes report. Engines
// are called here only, so what poll_transmit() hands out stays valid.
void Member::end_turn(Nanos now) {
  do {
    exchange(now);
  } while (take_events(now));
}

void Member::exchange(Nanos now) {
  Transmit transmit;
  bool more = shard_ != nullptr;
  while (more) {
    more = false;
    if (own_ != nullptr && own_->worker.poll_timeout() <= now) own_->worker.handle_timeout(now);
    while (own_ != nullptr && own_->worker.poll_transmit(now, &transmit)) {
      shard_->handle_packet(now, own_address(), datagram_of(transmit));
      more = true;
    }
    while (shard_->poll_transmit(now, &transmit)) {
      take_from_shard(now, transmit);
      more = true;
    }
    take_shard_events();
  }
}

// Results that wait to be sent lie in the memory of a group, which the shard frees with it.
void Member::take_shard_events() {
  SwitchEvent event;
  while (shard_->poll_event(&event)) {
    if (event.kind != SwitchEvent::Kind::group_closed) continue;
    const auto waiting = outgoing_.begin() + static_cast<ptrdiff_t>(sent_);
    outgoing_.erase(std::remove_if(waiting, outgoing_.end(),
                                   [](const Outgoing& outgoing) {
                                     return outgoing.transmit.payload != nullptr;
                                   }),
                    outgoing_.end());
  }
}

void Member::take_from_shard(Nanos now, const Transmit& transmit) {
  Outgoing outgoing{.transmit = transmit, .to = {}};
  for (uint64_t left = transmit.receivers; left != 0; left &= left - 1) {
    const int index = std::countr_zero(left);
    // The shard may forget its group before this is sent; a driver groups packets by their pointer.
    // A single receiver may be a stranger, whose address must not become that of rank 0.
    if (transmit.receivers != 1) peers_[static_cast<size_t>(index)] = transmit.addresses[index];
    if (!is_own(transmit.addresses[index])) continue;
    outgoing.transmit.receivers &= ~(uint64_t{1} << index);
    if (own_ != nullptr) own_->worker.handle_packet(now, datagram_of(transmit));
  }
  if (outgoing.transmit.receivers == 0) return;
  outgoing.transmit.addresses = peers_.data();
  if (outgoing.transmit.receivers == 1) outgoing.to = *transmit.addresses;
  outgoing_.push_back(outgoing);
}

bool Member::poll_transmit(Nanos now, Transmit* out) {
  if (sent_ < outgoing_.size()) {
    const Outgoing& next = outgoing_[sent_++];
    *out = next.transmit;
    if (out->receivers == 1) out->addresses = &next.to;
    return true;
  }
  // Each member begins with the lane after its own, so that not all send to one shard at once.
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[(config_.worker.rank + 1 + i) % lanes_.size()];
    if (&lane == own_ || !lane.worker.poll_transmit(now, out)) continue;
    if (lane.aggregator.address.size > 0) out->addresses = &lane.aggregator.address;
    return true;
  }
  return false;
}

// --- time ---------------------------------------------------------------------------------------

void Member::handle_timeout(Nanos now) {
  begin_turn();
  for (Lane& lane : lanes_)
    if (lane.worker.poll_timeout() <= now) lane.worker.handle_timeout(now);
  if (shard_ != nullptr) shard_->handle_timeout(now);
  end_turn(now);
}

Nanos Member::poll_timeout() const {
  Nanos due = shard_ == nullptr ? kNever : shard_->poll_timeout();
  for (const Lane& lane : lanes_) due = std::min(due, lane.worker.poll_timeout());
  return due;
}

// --- commands -----------------------------------------------------------------------------------

uint64_t Member::submit(Nanos now, const Collective& what) {
  begin_turn();
  const uint64_t sequence = ++sequence_;
  pending_.push_back({.sequence = sequence});
  if (state_ != WorkerState::active) {
    pending_.back().ok = false;
    end_break();
    return sequence;
  }
  uint32_t payload_bytes = NF_PAYLOAD_BYTES_MAX;
  for (const Lane& lane : lanes_)
    payload_bytes = std::min<uint32_t>(payload_bytes, lane.worker.settlement().payload_bytes);
  const Partition partition = partition_of(what, lanes_.size(), payload_bytes, sequence);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const std::optional<Collective> part = part_of(what, partition, i);
    if (part) {
      pending_.back().parts += 1;
      lanes_[i].worker.submit(now, *part);
    } else {
      lanes_[i].worker.skip(fingerprint_of(what));
    }
  }
  end_turn(now);
  return sequence;
}

uint64_t Member::skip(uint64_t fingerprint) {
  for (Lane& lane : lanes_) lane.worker.skip(fingerprint);
  return ++sequence_;
}

void Member::abort(Nanos now) {
  begin_turn();
  for (Lane& lane : lanes_) lane.worker.abort(now);
  end_turn(now);
}

void Member::leave(Nanos now) {
  if (state_ == WorkerState::leaving || state_ == WorkerState::left) return;
  begin_turn();
  if (breakage_.cause == 0)
    breakage_ = {.cause = NF_CAUSE_ABORT, .ranks = bit_of(config_.worker.rank)};
  state_ = WorkerState::leaving;
  for (Lane& lane : lanes_) lane.worker.leave(now);
  if (shard_ != nullptr) shard_->drain();
  end_turn(now);
}

void Member::desert(Nanos now) {
  begin_turn();
  end_shard(now);
  end_turn(now);
}

void Member::end_shard(Nanos now) {
  if (shard_ == nullptr || deserted_) return;
  deserted_ = true;
  shard_->break_all(now, {.cause = NF_CAUSE_GONE, .ranks = bit_of(config_.worker.rank)});
}

// --- what lanes report --------------------------------------------------------------------------

bool Member::take_events(Nanos now) {
  WorkerEvent event;
  bool any = false;
  for (Lane& lane : lanes_)
    while (lane.worker.poll_event(&event)) {
      take_event(now, &lane, event);
      any = true;
    }
  end_break();
  if (state_ == WorkerState::leaving) end_leave(now);
  return any;
}

void Member::take_event(Nanos now, Lane* lane, const WorkerEvent& event) {
  switch (event.kind) {
    case WorkerEvent::Kind::settled:
      return on_settled();
    case WorkerEvent::Kind::completed:
      return on_part(event);
    case WorkerEvent::Kind::refused:
      return on_refused(now, event);
    case WorkerEvent::Kind::broken:
      return on_broken(now, lane);
    case WorkerEvent::Kind::late:  // lanes wait for the same rank
      if (event.sequence > late_sequence_) events_.push_back(event);
      late_sequence_ = std::max(late_sequence_, event.sequence);
      return;
    case WorkerEvent::Kind::left:
      return;  // see end_leave()
  }
}

void Member::on_settled() {
  const bool all = std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    return lane.worker.state() == WorkerState::active;
  });
  if (!all || state_ != WorkerState::hello) return;
  state_ = WorkerState::active;
  events_.push_back({.kind = WorkerEvent::Kind::settled});
}

void Member::on_refused(Nanos now, const WorkerEvent& event) {
  if (state_ != WorkerState::hello) return;
  state_ = WorkerState::refused;
  for (Lane& lane : lanes_) lane.worker.leave(now);
  events_.push_back(event);
}

void Member::on_part(const WorkerEvent& event) {
  const auto found = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& pending) {
    return pending.sequence == event.sequence;
  });
  if (found == pending_.end()) return;
  found->parts -= 1;
  found->ok &= event.ok;
  found->bytes_done += event.bytes_done;
  if (found->parts > 0 || !found->ok) return;  // a failure waits for its reason
  collectives_ok_ += 1;
  events_.push_back({.kind = WorkerEvent::Kind::completed,
                     .ok = true,
                     .sequence = found->sequence,
                     .bytes_done = found->bytes_done});
  pending_.erase(found);
}

// One lane's reason becomes that of all: the other aggregators take it over, or had their own.
void Member::on_broken(Nanos now, Lane* broken) {
  const Lane& lane = *broken;
  const Breakage& why = lane.worker.breakage();
  const uint16_t host = lane.aggregator.host_rank;
  if (why.cause == NF_CAUSE_GONE && host != Aggregator::kNobody && (why.ranks >> host & 1))
    broken->worker.abandon();
  if (state_ != WorkerState::hello && state_ != WorkerState::active) return;
  state_ = WorkerState::breaking;
  const Breakage breakage = breakage_of(lane);
  for (Lane& other : lanes_)
    if (&other != &lane) other.worker.adopt(now, breakage);
}

// A shard that is silent has died with the rank that ran it.
Breakage Member::breakage_of(const Lane& lane) const {
  Breakage breakage = lane.worker.breakage();
  if (breakage.cause == NF_CAUSE_AGGREGATOR_LOST &&
      lane.aggregator.host_rank != Aggregator::kNobody) {
    breakage.cause = NF_CAUSE_GONE;
    breakage.ranks = bit_of(lane.aggregator.host_rank);
  }
  return breakage;
}

// Fails what has failed once every lane knows why, so that all ranks choose the same reason.
void Member::end_break() {
  if (breakage_.cause == 0 && state_ == WorkerState::breaking) {
    const Lane* chosen = nullptr;
    for (const Lane& lane : lanes_) {
      if (lane.worker.breakage().cause == 0) return;
      const bool better = chosen == nullptr || precedence(lane.worker.breakage().cause) <
                                                   precedence(chosen->worker.breakage().cause);
      if (better) chosen = &lane;
    }
    breakage_ = breakage_of(*chosen);
    events_.push_back({.kind = WorkerEvent::Kind::broken});
  }
  if (breakage_.cause == 0) return;
  std::erase_if(pending_, [this](const Pending& pending) {
    if (pending.parts > 0) return false;
    collectives_failed_ += 1;
    events_.push_back({.kind = WorkerEvent::Kind::completed,
                       .sequence = pending.sequence,
                       .bytes_done = pending.bytes_done});
    return true;
  });
  const bool ended = std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    return lane.worker.state() == WorkerState::broken;
  });
  if (state_ == WorkerState::breaking && ended) state_ = WorkerState::broken;
}

// Others may not have left: they get what is theirs, and then hear that this rank is gone.
void Member::end_leave(Nanos now) {
  const bool lanes_left = std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    return lane.worker.state() == WorkerState::left;
  });
  if (!lanes_left) return;
  if (shard_ != nullptr && !shard_->drained()) {
    if (shard_->owes_nothing()) end_shard(now);
    if (!deserted_ || shard_->announcing()) return;
  }
  state_ = WorkerState::left;
  events_.push_back({.kind = WorkerEvent::Kind::left});
}

bool Member::poll_event(WorkerEvent* out) {
  if (events_.empty()) return false;
  *out = events_.front();
  events_.pop_front();
  return true;
}

// --- what is known ------------------------------------------------------------------------------

uint64_t Member::joined() const {
  uint64_t joined = all_of(config_.worker.size);
  for (const Lane& lane : lanes_) joined &= lane.worker.joined();
  return lanes_.empty() ? 0 : joined;
}

std::vector<uint32_t> Member::progress() const {
  std::vector<uint32_t> latest(config_.worker.size, 0);
  for (const Lane& lane : lanes_)
    for (size_t rank = 0; rank < latest.size(); ++rank)
      if (static_cast<int32_t>(lane.worker.progress()[rank] - latest[rank]) > 0)
        latest[rank] = lane.worker.progress()[rank];
  return latest;
}

bool Member::answered() const {
  return !lanes_.empty() && std::all_of(lanes_.begin(), lanes_.end(),
                                        [](const Lane& lane) { return lane.worker.answered(); });
}

Nanos Member::last_heard() const {
  Nanos earliest = kNever;
  for (const Lane& lane : lanes_) earliest = std::min(earliest, lane.worker.last_heard());
  return earliest;
}

}  // namespace netfold
