// The switch engine: jobs, groups, their slots; adds what workers send, multicasts one result.
//
// Driven as the worker engine is (worker.h). One instance belongs to one thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/control.h"
#include "core/slots.h"

namespace netfold {

struct SwitchConfig {
  uint16_t node = 0;
  bool has_secret = false;
  Key secret{};
  Key cookie_key{};           // random
  uint32_t first_stream = 1;  // random: a restarted switch gives other stream ids
  uint64_t first_chunk = 0;   // tests start near the wrap of 32 bits
  uint16_t payload_bytes_max = NF_PAYLOAD_BYTES_MAX;
  uint16_t window_max = 128;
  uint64_t receive_buffer_bytes = 1 << 20;  // granted by the kernel; bounds the credit
  uint64_t memory_bytes_max = 1ULL << 30;   // slot memory of all groups
  uint32_t groups_max = 1024;
  uint32_t jobs_max = 256;
  Nanos lease = 5 * kSecond;
  Nanos tombstone = 600 * kSecond;  // how long a broken group still answers who broke it
  Nanos announce_repeat = 100 * kMillisecond;
  uint32_t announce_max = 12;
};

// What an aggregator can take of one group.
struct Terms {
  uint64_t payload_bytes = 0;  // of a chunk
  uint64_t window = 0;
};

// At most `wanted`, with the chunks of `senders` in flight in the receive buffer.
[[nodiscard]] Terms terms_within(const SwitchConfig& config, Terms wanted, uint64_t senders);

struct SwitchEvent {
  enum class Kind : uint8_t { group_settled, group_broken, group_closed, member_refused };
  Kind kind;
  std::string job;
  uint64_t group = 0;
  uint16_t size = 0;
  uint16_t payload_bytes = 0;
  uint16_t window = 0;
  uint16_t rank = 0;    // member_refused
  uint8_t reason = 0;   // member_refused: NF_REFUSAL_*
  Breakage breakage{};  // group_broken
};

struct SwitchCounters {
  uint64_t packets_tx = 0, packets_rx = 0;  // per receiver
  uint64_t bytes_tx = 0, bytes_rx = 0;
  uint64_t data_rx = 0, chunks_completed = 0, results_tx = 0, results_resent = 0, haves_tx = 0;
  uint64_t probes_rx = 0, duplicates = 0, late = 0, early = 0;
  uint64_t foreign = 0, malformed = 0, bad_crc = 0, bad_tag = 0, bad_version = 0;
  uint64_t bad_cookie = 0, unknown_stream = 0, replayed = 0, refused = 0, unexpected = 0;
  uint64_t transmit_dropped = 0;
  uint64_t groups_open = 0, memory_bytes = 0;
};

// A switch as its driver sees it, whatever its place in the tree.
class SwitchEngine {
 public:
  virtual ~SwitchEngine() = default;

  virtual void handle_packet(Nanos now, const Address& from, const Datagram& datagram) = 0;
  virtual void handle_timeout(Nanos now) = 0;
  // No new groups from now on; drained() once the ones there are have left.
  virtual void drain() = 0;
  // Breaks every group, so that workers end at once.
  virtual void break_all(Nanos now, const Breakage& why) = 0;

  [[nodiscard]] virtual bool poll_transmit(Nanos now, Transmit* out) = 0;
  [[nodiscard]] virtual Nanos poll_timeout() const = 0;
  [[nodiscard]] virtual bool poll_event(SwitchEvent* out) = 0;

  [[nodiscard]] virtual bool drained() const = 0;  // no group needs this switch any more
  [[nodiscard]] virtual bool announcing()
      const = 0;  // members have not yet acknowledged a breakage
  [[nodiscard]] virtual const SwitchCounters& counters() const = 0;
};

// The root of the tree, and the only switch where there is no other: it decides.
class Switch final : public SwitchEngine {
 public:
  Switch(const SwitchConfig& config, Nanos now);
  ~Switch() override;

  void handle_packet(Nanos now, const Address& from, const Datagram& datagram) override;
  void handle_timeout(Nanos now) override;
  void drain() override { draining_ = true; }
  void break_all(Nanos now, const Breakage& why) override;

  [[nodiscard]] bool poll_transmit(Nanos now, Transmit* out) override;
  [[nodiscard]] Nanos poll_timeout() const override;
  [[nodiscard]] bool poll_event(SwitchEvent* out) override;

  [[nodiscard]] bool drained() const override;
  [[nodiscard]] bool announcing() const override;
  [[nodiscard]] const SwitchCounters& counters() const override { return counters_; }
  // Every member of every group is known to have all results there are.
  [[nodiscard]] bool owes_nothing() const;

  // For checkers outside: the heads of the slot `chunk` falls into, or null.
  [[nodiscard]] const nf_slot_head* slot_heads(uint32_t stream, uint64_t chunk) const;
  [[nodiscard]] uint32_t size_of(uint32_t stream) const;  // of a group there is

 private:
  struct Job;
  struct Group;
  struct Member;
  struct Outgoing {
    Transmit transmit;
    Address to;                    // of a receiver that is no member (yet)
    const Group* group = nullptr;  // whose memory `transmit` points into
  };

  // joining
  void on_untagged(const Address& from, const Header& header, const Datagram& datagram);
  void on_join(Nanos now, const Address& from, const Header& header, const Datagram& datagram);
  [[nodiscard]] uint8_t admit(Nanos now, const Address& from, const Header& header,
                              const JoinBody& body, Group** group, uint16_t* detail);
  [[nodiscard]] Group* find_or_open_group(Nanos now, const JoinBody& body, uint8_t* refusal);
  void refuse(const Address& to, uint16_t rank, uint32_t request, uint64_t group,
              const RefusedBody& refusal, const Key& key);
  void settle(Nanos now, Group* group);
  void begin_where_members_are(Group* group) const;
  [[nodiscard]] uint64_t cookie_for(const Address& from) const;
  // the packets of a settled group
  void on_member_packet(Nanos now, const Address& from, const Header& header,
                        const Datagram& datagram, Group* group);
  void on_control(Nanos now, const Header& header, const Datagram& datagram, Group* group);
  void on_data(Nanos now, const Header& header, const Datagram& datagram, Group* group);
  void on_probe(Nanos now, const Header& header, Group* group);
  void on_heartbeat(Nanos now, const Header& header, const Datagram& datagram, Group* group);
  void compare_fingerprints(Nanos now, uint16_t rank, Group* group);
  void on_leave(Nanos now, const Header& header, Group* group);
  void on_abort(Nanos now, const Header& header, const Datagram& datagram, Group* group);
  [[nodiscard]] bool is_fresh(const Header& header, Group* group);
  [[nodiscard]] bool data_is_wellformed(const Header& header, const Group& group) const;
  void note_known(Nanos now, const Header& probe, Group* group);
  void complete(const Header& last, Group* group, Slot* slot, uint32_t version);
  void break_for_the_gone(Nanos now, Group* group);
  // ends
  void break_group(Nanos now, Group* group, Breakage breakage);
  void keep_house(Nanos now, Group* group);
  void close_group(Group* group);
  [[nodiscard]] bool evict_tombstone();
  void discard_sent();
  void purge_outgoing(const Group* group);
  void report(SwitchEvent&& event);
  // sending
  void send_result(Group* group, const Slot& slot, uint32_t version, uint64_t receivers);
  void send_header(Header header, Group* group, uint64_t receivers);
  void send_control(Header header, const uint8_t* body, size_t bytes, Group* group,
                    uint64_t receivers);
  void fill_control(Header header, const uint8_t* body, size_t bytes, const Key* key,
                    Transmit* out) const;
  void send_to(const Address& to, const Header& header, const uint8_t* body, size_t bytes,
               const Key* key);
  void send_joined(Group* group, uint16_t rank);
  void announce(Group* group, uint64_t receivers);
  void push(Outgoing&& outgoing, uint64_t copies);

  const SwitchConfig config_;
  SwitchCounters counters_;
  bool draining_ = false;
  uint32_t next_stream_;
  Nanos house_due_ = kNever;
  std::map<std::pair<std::string, uint64_t>, std::unique_ptr<Job>> jobs_;
  std::unordered_map<uint32_t, Group*> streams_;  // groups, tombstones too
  std::deque<Outgoing> outgoing_;  // those before `sent_` are handed out, kept for their bytes
  size_t sent_ = 0;
  std::deque<SwitchEvent> events_;
};

}  // namespace netfold
