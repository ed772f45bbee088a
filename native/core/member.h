// One member of one group, over all the aggregators that the group has.
//
// A group with k aggregators has k lanes, each a Worker with a stream, a key and slots of its own.
// A collective is cut into parts of whole blocks, one for each lane that takes some of it; it is
// done when all its parts are. Where aggregators are shards on the members' own hosts, a member
// also runs one: a Switch beside its lanes, behind the same socket. What its lane and its shard
// tell each other never leaves the process.
//
// Driven as the engines are (worker.h), but with the address that packets come from and go to.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "core/switch.h"
#include "core/worker.h"

namespace netfold {

struct Aggregator {
  static constexpr uint16_t kNobody = UINT16_MAX;
  Address address;                 // empty: the peer a socket is connected to
  uint16_t payload_bytes_max = 0;  // from the path MTU to it
  uint16_t window_max = 1;         // from our receive buffer
  uint16_t host_rank = kNobody;    // the member it is a shard of; a switch is nobody's
};

struct MemberConfig {
  // Of every lane; key and incarnation are what those of the lanes are derived from.
  WorkerConfig worker;
  bool has_shard = false;
  SwitchConfig shard;
};

// Of a job's key, so that a packet of one lane is nothing to another.
[[nodiscard]] Key lane_key(const Key& key, uint32_t lane);

class Member {
 public:
  // A shard serves from the start, so that faster members find it.
  Member(const MemberConfig& config, Nanos now);
  // The group's aggregators, the same list on all members; once.
  void connect(Nanos now, const std::vector<Aggregator>& aggregators);

  void handle_packet(Nanos now, const Address& from, const Datagram& datagram);
  void handle_timeout(Nanos now);

  uint64_t submit(Nanos now, const Collective& collective);
  uint64_t skip(uint64_t fingerprint);
  void abort(Nanos now);
  // Goes. `left` comes when no other member needs our shard any more.
  void leave(Nanos now);
  // Ends the shard although others may need it: they hear that this rank is gone.
  void desert(Nanos now);

  [[nodiscard]] bool poll_transmit(Nanos now, Transmit* out);
  [[nodiscard]] Nanos poll_timeout() const;
  [[nodiscard]] bool poll_event(WorkerEvent* out);

  // hello until all aggregators have answered and all members have joined; then as of a worker.
  [[nodiscard]] WorkerState state() const { return state_; }
  [[nodiscard]] uint64_t pending() const { return pending_.size(); }
  [[nodiscard]] uint64_t joined() const;  // members that all aggregators have seen
  [[nodiscard]] const Breakage& breakage() const { return breakage_; }
  [[nodiscard]] std::vector<uint32_t> progress() const;
  [[nodiscard]] bool answered() const;     // every aggregator spoke to us
  [[nodiscard]] Nanos last_heard() const;  // of the one that is silent longest
  [[nodiscard]] uint64_t collectives_ok() const { return collectives_ok_; }
  [[nodiscard]] uint64_t collectives_failed() const { return collectives_failed_; }
  [[nodiscard]] bool announcing() const { return shard_ != nullptr && shard_->announcing(); }
  [[nodiscard]] size_t lanes() const { return lanes_.size(); }
  [[nodiscard]] const Worker& lane(size_t index) const { return lanes_[index].worker; }
  [[nodiscard]] const Switch* shard() const { return shard_.get(); }

 private:
  struct Lane {
    Aggregator aggregator;
    Key key;
    Worker worker;
    uint32_t first_request;
  };
  struct Pending {  // a collective with parts that have no outcome
    uint64_t sequence = 0;
    uint32_t parts = 0;
    bool ok = true;
    uint64_t bytes_done = 0;
  };

  struct Outgoing {  // of the shard, to other members
    Transmit transmit;
    Address to;  // of one who is no member (yet)
  };

  [[nodiscard]] WorkerConfig lane_config(uint32_t index, const Aggregator& aggregator) const;
  [[nodiscard]] Lane* lane_for(const Datagram& datagram);
  // between our lane and our shard
  void begin_turn();
  void end_turn(Nanos now);
  void exchange(Nanos now);
  void take_shard_events();
  void take_from_shard(Nanos now, const Transmit& transmit);
  // what lanes report
  bool take_events(Nanos now);
  void take_event(Nanos now, Lane* lane, const WorkerEvent& event);
  void on_settled();
  void on_part(const WorkerEvent& event);
  void on_refused(Nanos now, const WorkerEvent& event);
  void on_broken(Nanos now, Lane* broken);
  void end_break();
  void end_leave(Nanos now);
  void end_shard(Nanos now);
  [[nodiscard]] Breakage breakage_of(const Lane& lane) const;

  const MemberConfig config_;
  WorkerState state_ = WorkerState::hello;
  std::deque<Lane> lanes_;
  std::unique_ptr<Switch> shard_;
  bool deserted_ = false;
  Lane* own_ = nullptr;            // whose aggregator is our shard
  std::array<Address, 64> peers_;  // of the shard's group, by rank
  std::deque<Outgoing> outgoing_;  // those before `sent_` are handed out, kept for their addresses
  size_t sent_ = 0;
  uint64_t sequence_ = 0;
  std::deque<Pending> pending_;
  Breakage breakage_{};
  uint64_t late_sequence_ = 0;
  uint64_t collectives_ok_ = 0;
  uint64_t collectives_failed_ = 0;
  std::deque<WorkerEvent> events_;
};

}  // namespace netfold
