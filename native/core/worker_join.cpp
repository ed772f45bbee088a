// How a worker comes to an aggregator, and how it comes again after that has lost its state.
#include <algorithm>

#include "core/worker.h"

namespace netfold {
namespace {

constexpr uint32_t kJoinsBeforeNewCookie = 5;
// Silent for so many heartbeats, an aggregator may have been started again: it is asked for a
// cookie, which it gives to anybody.
constexpr int kSilentHeartbeats = 2;

}  // namespace

void Worker::enter(Joining stage) {
  joining_ = stage;
  if (state_ == WorkerState::active) return;
  state_ = stage == Joining::hello  ? WorkerState::hello
           : stage == Joining::join ? WorkerState::joining
                                    : WorkerState::waiting;
}

void Worker::on_hello_answer(Nanos now, const Header& header, const Datagram& datagram) {
  if (datagram.payload == nullptr) return;
  if (header.type == NF_TYPE_REFUSED) {
    RefusedBody body;
    if (joining_ != Joining::no && decode(datagram.payload, datagram.payload_bytes, &body))
      refuse(body);
    return;
  }
  CookieBody body;
  if (!decode(datagram.payload, datagram.payload_bytes, &body)) return;
  cookie_ = body.cookie;
  enter(Joining::join);
  request(now, NF_TYPE_JOIN);
}

void Worker::refuse(const RefusedBody& body) {
  if (state_ == WorkerState::active) return break_alone(NF_CAUSE_AGGREGATOR_LOST, 0);
  state_ = WorkerState::refused;
  joining_ = Joining::no;
  request_ = {};
  events_.push_back({.kind = WorkerEvent::Kind::refused, .refused = body});
}

void Worker::on_joined(Nanos now, const Header& header, const Datagram& datagram) {
  JoinedBody body;
  bool const expected = (joining_ == Joining::join || joining_ == Joining::wait) &&
                        header.rank == config_.rank && datagram.payload != nullptr &&
                        decode(datagram.payload, datagram.payload_bytes, &body);
  if (!expected) {
    counters_.unexpected += 1;
    return;
  }
  if (state_ == WorkerState::active && body.settled) return on_rejoined(now, body);
  if (state_ != WorkerState::active) settlement_ = body;
  if (body.settled) return settle(now);
  enter(Joining::wait);
  request_.repeats = kBackoffMax;  // from now on the Join is repeated as a heartbeat
  request_.due = now + config_.heartbeat;
}

void Worker::settle(Nanos now) {
  state_ = WorkerState::active;
  joining_ = Joining::no;
  request_ = {};
  size_t const window = std::max<size_t>(settlement_.window, 1);
  slots_.assign(window, Slot{});
  for (uint64_t chunk = settlement_.first_chunk; chunk < settlement_.first_chunk + window; ++chunk)
    slots_[chunk % window].chunk = chunk;
  end_chunk_ = settlement_.first_chunk;
  history_.resize(window * settlement_.payload_bytes);
  heartbeat_due_ = now + config_.heartbeat;
  events_.push_back({.kind = WorkerEvent::Kind::settled});
}

// --- again --------------------------------------------------------------------------------------

Nanos Worker::seek_due() const {
  bool const may = config_.rejoins && state_ == WorkerState::active && joining_ == Joining::no;
  return may ? last_heard_ + kSilentHeartbeats * config_.heartbeat + config_.heartbeat / 2 : kNever;
}

void Worker::seek(Nanos now) {
  joining_ = Joining::hello;
  request(now, NF_TYPE_HELLO);
}

// What we had asked for before is asked for again.
void Worker::stop_seeking(Nanos now) {
  joining_ = Joining::no;
  request_ = {};
  if (aborting_ && state_ == WorkerState::active) request(now, NF_TYPE_ABORT);
}

void Worker::on_rejoined(Nanos now, const JoinedBody& body) {
  if (body.stream == settlement_.stream) return stop_seeking(now);
  bool can_go_on = body.epoch > settlement_.epoch &&
                   body.payload_bytes == settlement_.payload_bytes &&
                   body.window == settlement_.window;
  for (size_t i = 0; can_go_on && i < slots_.size(); ++i) {
    uint64_t const next = next_of(slots_[i]);
    uint64_t const ahead = (next / slots_.size() - body.phases.of(i)) & 3;
    bool const has_copy = slots_[i].kept_bytes != 0 && slots_[i].kept_chunk + slots_.size() == next;
    can_go_on = ahead == 0 || (ahead == 1 && has_copy);
  }
  if (!can_go_on) return break_alone(NF_CAUSE_AGGREGATOR_LOST, 0);
  settlement_ = body;
  stop_seeking(now);
  resync(now);
}

// The chunk the slot waits for, or is to send next.
uint64_t Worker::next_of(const Slot& slot) const {
  return slot.again ? slot.kept_chunk + slots_.size() : slot.chunk;
}

// Each slot begins at the first chunk of its own that anybody lacks (DESIGN, "Generation"). Who has
// its result gives a copy of it; all others send what they contribute afresh.
void Worker::resync(Nanos now) {
  counters_.resyncs += 1;
  heartbeat_due_ = now + config_.heartbeat;
  queue_.clear();
  backed_off_ = 0;
  suspect_end_ = newest_result_ = settlement_.first_chunk;
  slot_deadline_ = kNever;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    uint64_t const next = next_of(slot);
    slot.again = settlement_.phases.of(i) != (next / slots_.size() & 3);
    slot.chunk = slot.again ? slot.kept_chunk : next;
    slot.state = SlotState::free;
    slot.attempt = slot.backoff = 0;
    slot.deadline = kNever;
    if (slot.again)
      enqueue(&slot, false);
    else
      offer(slot.chunk);
  }
}

// --- sending ------------------------------------------------------------------------------------

void Worker::fill_request(Nanos now, Transmit* out) {
  // A NAT that gave us another address has made our cookie a wrong one.
  bool const unanswered = joining_ == Joining::join ? request_.repeats >= kJoinsBeforeNewCookie
                                                    : now - last_heard_ > 3 * config_.heartbeat;
  if (request_.type == NF_TYPE_JOIN && unanswered) {
    enter(Joining::hello);
    request(now, NF_TYPE_HELLO);
  }
  request_.last_id = next_request_;
  request_.due = now + std::min(config_.request_repeat << std::min(request_.repeats, kBackoffMax),
                                config_.heartbeat);
  request_.repeats += 1;
  uint8_t body[kControlBytesMax] = {};
  size_t bytes = 0;
  if (request_.type == NF_TYPE_HELLO) {
    bytes = kHelloBytes;
  } else if (request_.type == NF_TYPE_JOIN) {
    JoinBody join{.cookie = cookie_,
                  .key = config_.key,
                  .incarnation = config_.incarnation,
                  .nonce = config_.nonce,
                  .group = config_.group,
                  .size = config_.size,
                  .payload_bytes_max = config_.payload_bytes_max,
                  .window_max = config_.window_max,
                  .epoch = 0,
                  .phases = {},
                  .job = config_.job};
    if (state_ == WorkerState::active) {  // chunks are cut already
      join.payload_bytes_max = settlement_.payload_bytes;
      join.window_max = settlement_.window;
      join.epoch = settlement_.epoch;
      for (size_t i = 0; i < slots_.size(); ++i)
        join.phases.set(i, next_of(slots_[i]) / slots_.size());
    }
    if (config_.has_secret) join.secret_tag = secret_tag(join, config_.secret);
    bytes = encode(join, body);
  } else if (request_.type == NF_TYPE_ABORT) {
    bytes = encode(own_abort_, body);
  }
  fill_control(request_.type, body, bytes, out);
}

}  // namespace netfold
