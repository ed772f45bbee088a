// The worker engine: one member of one group, its lane's window, and the result history.
//
// No clock, socket, thread or random number inside. The driver calls, in any order,
//   handle_packet / handle_timeout   what happened, with the time
//   submit / skip / abort / leave    what the application wants
//   poll_transmit / poll_timeout / poll_event   what to send, when to come back, what to report
// and after each call of the first two kinds drains poll_transmit.
#pragma once

#include <deque>
#include <vector>

#include "core/control.h"
#include "core/reduction.h"

namespace netfold {

struct WorkerConfig {
  std::string job;
  uint64_t incarnation = 0;
  Key key{};
  uint64_t group = 0;
  uint64_t nonce = 0;          // random; tells this engine from an impostor with the same rank
  uint32_t first_request = 0;  // random start of the request ids
  uint16_t rank = 0;
  uint16_t size = 0;  // 2 to NF_CHILDREN_MAX
  bool has_secret = false;
  Key secret{};
  uint16_t payload_bytes_max = 1408;  // from the path MTU
  uint16_t window_max = 128;          // from the granted receive buffer
  bool rejoins = true;                // comes again to an aggregator that has lost its state
  Nanos lease = 5 * kSecond;
  Nanos heartbeat = kSecond;
  Nanos retransmit_initial = 20 * kMillisecond;
  Nanos retransmit_min = 5 * kMillisecond;
  Nanos probe_max = kSecond;                  // a waiting lane probes no less often than this
  Nanos request_repeat = 100 * kMillisecond;  // control messages, doubling up to a heartbeat
  Nanos late_after = 10 * kSecond;
};

enum class WorkerState : uint8_t {
  hello,    // asks for a cookie
  joining,  // sends Join until answered
  waiting,  // joined; other ranks are missing
  active,
  breaking,  // the group is broken; asks which outstanding chunks completed before that
  broken,    // every collective has its outcome; later ones fail at once
  leaving,
  left,
  refused,  // never joined
};

struct WorkerEvent {
  enum class Kind : uint8_t {
    settled,    // stream, chunk bytes and window are agreed: collectives flow
    refused,    // `refused` says why
    completed,  // `sequence` ended: ok, or failed with breakage()
    broken,     // breakage() is known
    late,       // `ranks` have not contributed to `sequence` for WorkerConfig::late_after
    left,
  };
  Kind kind;
  bool ok = false;
  uint64_t sequence = 0;
  uint64_t bytes_done = 0;  // of the collective's tensor, results received
  uint64_t ranks = 0;
  RefusedBody refused{};
};

struct WorkerCounters {
  uint64_t packets_tx = 0, packets_rx = 0;
  uint64_t bytes_tx = 0, bytes_rx = 0;  // UDP payload: header and body
  uint64_t data_tx = 0, data_resent = 0, probes_tx = 0;
  uint64_t resyncs = 0;  // with an aggregator that had lost its state
  uint64_t results_rx = 0, results_duplicate = 0, haves_rx = 0, voids_rx = 0;
  uint64_t foreign = 0, malformed = 0, bad_crc = 0, bad_tag = 0, bad_version = 0, unexpected = 0;
  uint64_t collectives_ok = 0, collectives_failed = 0;
};

class Worker {
 public:
  Worker(const WorkerConfig& config, Nanos now);

  void handle_packet(Nanos now, const Datagram& datagram);
  void handle_timeout(Nanos now);

  // The number of the collective in its group, from 1. Its outcome comes as an event.
  uint64_t submit(Nanos now, const Collective& collective);
  // A collective that another lane or path carries takes its number here, so that all agree.
  uint64_t skip(uint64_t fingerprint);
  // Breaks the group for everybody: cause NF_CAUSE_ABORT.
  void abort(Nanos now);
  // As abort(), with the reason for which another aggregator of the group broke it.
  void adopt(Nanos now, const Breakage& breakage);
  // The aggregator has ended: what is outstanding of a broken group will not be answered.
  void abandon();
  // Goes, and tells the aggregator; pending collectives fail with NF_CAUSE_ABORT here.
  void leave(Nanos now);

  [[nodiscard]] bool poll_transmit(Nanos now, Transmit* out);
  [[nodiscard]] Nanos poll_timeout() const;
  [[nodiscard]] bool poll_event(WorkerEvent* out);

  [[nodiscard]] WorkerState state() const { return state_; }
  [[nodiscard]] uint64_t pending() const { return active_.size(); }
  [[nodiscard]] uint64_t joined() const { return settlement_.joined; }  // members seen so far
  [[nodiscard]] const JoinedBody& settlement() const { return settlement_; }
  [[nodiscard]] const Breakage& breakage() const { return breakage_; }
  // Last collective each rank was heard to have submitted (low 32 bits), from the aggregator.
  [[nodiscard]] const std::vector<uint32_t>& progress() const { return progress_; }
  [[nodiscard]] bool answered() const { return answered_; }  // the aggregator spoke to us at all
  [[nodiscard]] Nanos last_heard() const { return last_heard_; }
  [[nodiscard]] Nanos round_trip() const { return srtt_; }  // smoothed; 0 before the first sample
  [[nodiscard]] const WorkerCounters& counters() const { return counters_; }

  // Invariant 9: the last result of every slot, kept until the next one on it completes.
  // Null where the slot has none of `chunk`.
  [[nodiscard]] const uint8_t* kept_result(uint64_t chunk, size_t* bytes) const;

 private:
  static constexpr uint32_t kBackoffMax = 8;

  struct Active {  // a collective with chunks that are not done
    Reduction reduction;
    uint64_t fingerprint = 0;
    uint8_t op = 0;
    Nanos deadline = kNever;
    uint64_t sequence = 0;
    uint64_t first_chunk = ~uint64_t{0};  // until those before it have all their numbers
    uint64_t chunks = 0;                  // numbered so far
    uint64_t chunks_done = 0;
    uint64_t bytes_done = 0;
    Nanos submitted_at = 0;
    bool late_reported = false;

    [[nodiscard]] bool holds(uint64_t chunk) const { return chunk - first_chunk < chunks; }
    [[nodiscard]] bool numbered() const { return reduction.size_known() && chunks != 0; }
  };
  enum class SlotState : uint8_t { free, queued, sent, held };
  struct Slot {          // one per chunk the lane may have outstanding
    uint64_t chunk = 0;  // outstanding, or when free the next to be sent on this slot
    SlotState state = SlotState::free;
    bool probe = false;    // what a queued slot sends: Probe instead of Data
    uint32_t attempt = 0;  // transmissions of this chunk; 0: none yet
    uint32_t backoff = 0;
    Nanos sent_at = 0;
    Nanos deadline = kNever;
    uint64_t kept_chunk = 0;  // history; kept_bytes == 0: none
    uint32_t kept_bytes = 0;
    Header kept;         // of that result
    bool again = false;  // `chunk` is the one kept, which others lack
  };
  enum class Joining : uint8_t { no, hello, join, wait };
  struct Request {     // the control message that repeats until it is answered; one at a time
    uint8_t type = 0;  // 0: none
    uint32_t first_id = 0;
    uint32_t last_id = 0;  // each transmission takes a new id
    uint32_t repeats = 0;
    Nanos due = kNever;
  };

  // receiving
  [[nodiscard]] bool accept(Nanos now, const Datagram& datagram, Header* header);
  [[nodiscard]] bool answers_request(const Header& header) const;
  void on_hello_answer(Nanos now, const Header& header, const Datagram& datagram);
  // joining, and again where the aggregator has lost its state
  void enter(Joining stage);
  void on_joined(Nanos now, const Header& header, const Datagram& datagram);
  void refuse(const RefusedBody& body);
  [[nodiscard]] Nanos seek_due() const;
  void seek(Nanos now);
  void stop_seeking(Nanos now);
  void on_rejoined(Nanos now, const JoinedBody& body);
  [[nodiscard]] uint64_t next_of(const Slot& slot) const;
  void resync(Nanos now);
  void on_result(Nanos now, const Header& header, const Datagram& datagram);
  void on_result_again(const Header& header, Slot* slot);
  void on_have(Nanos now, const Header& header);
  void on_void(const Header& header);
  void on_ack(const Header& header, const Datagram& datagram);
  void on_breakage(Nanos now, const Datagram& datagram);
  // the lane
  void settle(Nanos now);
  void number_chunks();
  void offer(uint64_t first_chunk, uint64_t chunks);
  void offer(uint64_t chunk);
  void enqueue(Slot* slot, bool probe);
  void keep(Slot* slot, const Header& header, const uint8_t* payload, size_t bytes);
  void free_slot(Slot* slot);
  void finish_chunk(Nanos now, Slot* slot, Active* active, const uint8_t* result);
  void reset_backoff(Nanos now, uint64_t below_chunk);
  void sample_round_trip(Nanos sample);
  [[nodiscard]] Nanos retransmit_after(uint32_t backoff) const;
  [[nodiscard]] Active* find_active(uint64_t chunk);
  [[nodiscard]] Slot* outstanding(uint64_t chunk);
  void handle_slot_timeouts(Nanos now);
  void handle_collective_timeouts(Nanos now);
  void handle_silence(Nanos now);
  void excuse_own_silence(Nanos now);
  [[nodiscard]] Nanos silence_due() const;
  [[nodiscard]] Nanos late_due() const;
  // ends
  void begin_abort(Nanos now, uint8_t cause, uint64_t sequence);
  void begin_break(Nanos now, const Breakage& breakage);
  void end_break();
  void break_alone(uint8_t cause, uint64_t ranks);
  [[nodiscard]] bool all_sent(const Active& active) const;
  void free_slots_of(const Active& active);
  void fail(size_t index);
  void fail_all();
  // sending
  void request(Nanos now, uint8_t type);
  void fill_request(Nanos now, Transmit* out);
  void fill_heartbeat(Transmit* out);
  [[nodiscard]] uint64_t low_watermark() const;
  void fill_control(uint8_t type, const uint8_t* body, size_t bytes, Transmit* out);
  void fill_chunk(Nanos now, Slot* slot, Transmit* out);
  void fill_data(Slot* slot, Header* header, Transmit* out);
  void seal(const Header& header, Transmit* out, bool tagged);

  const WorkerConfig config_;
  WorkerState state_ = WorkerState::hello;
  Joining joining_ = Joining::hello;  // also of an active worker whose aggregator is silent
  WorkerCounters counters_;
  uint64_t cookie_ = 0;
  JoinedBody settlement_{};
  Breakage breakage_{};
  Breakage own_abort_{};
  bool aborting_ = false;  // have asked to break the group, and wait for the aggregator's word
  bool answered_ = false;
  Nanos last_heard_ = 0;
  std::vector<uint32_t> progress_;

  Request request_;
  uint32_t next_request_;
  Nanos heartbeat_due_ = kNever;
  bool ack_due_ = false;

  uint64_t sequence_ = 0;  // of the last collective, here or on another path
  uint64_t recent_[NF_HEARTBEAT_FINGERPRINTS] = {};  // of the last collectives, by sequence
  uint64_t end_chunk_ = 0;  // first chunk number that no collective has yet
  std::deque<Active> active_;
  std::vector<Slot> slots_;
  std::vector<uint8_t> history_;
  std::vector<uint8_t> staging_;  // what a slot sends, where that is not the tensor itself
  std::deque<uint32_t> queue_;    // slots with something to send; bounded by the window
  uint64_t newest_result_ = 0;    // one past the largest chunk a result came for
  uint64_t suspect_end_ = 0;      // chunks below may have been lost on the way up
  uint32_t backed_off_ = 0;       // slots whose backoff is not 0
  Nanos slot_deadline_ = kNever;  // no slot is due before
  uint64_t missing_ = 0;          // ranks the last Have did not contain
  Nanos progress_at_ = 0;         // when the lane last got a result
  Nanos srtt_ = 0;
  Nanos rttvar_ = 0;

  std::deque<WorkerEvent> events_;
};

}  // namespace netfold
