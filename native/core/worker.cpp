#include "core/worker.h"

#include <algorithm>

#include "core/bytes.h"

namespace netfold {
namespace {

constexpr Nanos kRetransmitMax = 200 * kMillisecond;

}  // namespace

Worker::Worker(const WorkerConfig& config, Nanos now)
    : config_(config),
      last_heard_(now),
      progress_(config.size, 0),
      next_request_(config.first_request) {
  request(now, NF_TYPE_HELLO);
}

// --- receiving ----------------------------------------------------------------------------------

void Worker::handle_packet(Nanos now, const Datagram& datagram) {
  counters_.packets_rx += 1;
  counters_.bytes_rx += NF_HEADER_BYTES + datagram.payload_bytes;
  Header header;
  if (!accept(now, datagram, &header)) return;
  switch (header.type) {
    case NF_TYPE_COOKIE:
    case NF_TYPE_REFUSED:
      return on_hello_answer(now, header, datagram);
    case NF_TYPE_JOINED:
      return on_joined(now, header, datagram);
    case NF_TYPE_RESULT:
      return on_result(now, header, datagram);
    case NF_TYPE_HAVE:
      return on_have(now, header);
    case NF_TYPE_VOID:
      return on_void(header);
    case NF_TYPE_ACK:
      return on_ack(header, datagram);
    case NF_TYPE_GONE:
    case NF_TYPE_MISMATCH:
    case NF_TYPE_ABORT:
      return on_breakage(now, datagram);
    default:
      counters_.unexpected += 1;
  }
}

// True for a packet that is ours to act on: well-formed, and tagged under the job's key or the
// answer to our last Hello, which nobody off the path can have seen.
bool Worker::accept(Nanos now, const Datagram& datagram, Header* header) {
  switch (decode_packet(datagram, header)) {
    case PacketError::foreign:
      counters_.foreign += 1;
      return false;
    case PacketError::malformed:
      counters_.malformed += 1;
      return false;
    case PacketError::crc:
      counters_.bad_crc += 1;
      return false;
    case PacketError::version:
      counters_.bad_version += 1;
      if (joining_ == Joining::hello && header->type == NF_TYPE_REFUSED &&
          header->counter == request_.last_id)
        refuse({.reason = NF_REFUSAL_VERSION, .version = header->version});
      return false;
    case PacketError::none:
      break;
  }
  bool const answers_hello = joining_ == Joining::hello && request_.type == NF_TYPE_HELLO &&
                             (header->type == NF_TYPE_COOKIE || header->type == NF_TYPE_REFUSED) &&
                             answers_request(*header);
  bool const untagged_only = header->type == NF_TYPE_COOKIE;
  if (answers_hello) {
    answered_ = true;
    // A cookie comes from anybody: it does not prolong the life of the aggregator that we know.
    if (state_ != WorkerState::active) last_heard_ = now;
    return true;
  }
  if (untagged_only) {
    counters_.unexpected += 1;
    return false;
  }
  if (!tag_is_valid(datagram.header, config_.key)) {
    counters_.bad_tag += 1;
    return false;
  }
  bool const of_our_stream = settlement_.stream == header->stream ||
                             header->type == NF_TYPE_JOINED || header->type == NF_TYPE_REFUSED ||
                             (joining_ != Joining::no && header->type >= NF_TYPE_GONE);
  if (!of_our_stream) {
    counters_.unexpected += 1;
    return false;
  }
  answered_ = true;
  last_heard_ = now;
  bool const alive = state_ == WorkerState::active && joining_ != Joining::no &&
                     settlement_.stream == header->stream && header->type != NF_TYPE_REFUSED;
  if (alive) stop_seeking(now);
  return true;
}

// Any transmission of the request may be the one that is answered.
bool Worker::answers_request(const Header& header) const {
  return header.counter - request_.first_id <= request_.last_id - request_.first_id;
}

void Worker::on_result(Nanos now, const Header& header, const Datagram& datagram) {
  counters_.results_rx += 1;
  Slot* slot = outstanding(header.chunk);
  if (slot == nullptr) {
    counters_.results_duplicate += 1;
    return;
  }
  if (slot->again) return on_result_again(header, slot);
  Active* active = find_active(header.chunk);
  Reduction::Chunk const chunk = active->reduction.chunk(header.chunk - active->first_chunk);
  if (header.fingerprint != active->fingerprint ||
      header.collective != static_cast<uint32_t>(active->sequence) || header.op != chunk.op ||
      header.dtype != chunk.dtype || header.elements != chunk.elements ||
      header.bitmap != all_of(config_.size)) {
    counters_.unexpected += 1;
    return;
  }
  // Only the last contributor knows when its packet arrived, and only of a packet sent once.
  if (header.rank == config_.rank && header.counter == 1 && slot->attempt == 1)
    sample_round_trip(now - slot->sent_at);
  if (datagram.payload != nullptr) keep(slot, header, datagram.payload, chunk.bytes);
  finish_chunk(now, slot, active, datagram.payload);
}

// What we had all the time; now all have it.
void Worker::on_result_again(const Header& header, Slot* slot) {
  if (header.fingerprint != slot->kept.fingerprint || header.collective != slot->kept.collective) {
    counters_.unexpected += 1;
    return;
  }
  free_slot(slot);
  offer(slot->chunk);
}

void Worker::keep(Slot* slot, const Header& header, const uint8_t* payload, size_t bytes) {
  size_t const index = static_cast<size_t>(slot - slots_.data());
  std::memcpy(history_.data() + index * settlement_.payload_bytes, payload, bytes);
  slot->kept_chunk = slot->chunk;
  slot->kept_bytes = static_cast<uint32_t>(bytes);
  slot->kept = header;
}

const uint8_t* Worker::kept_result(uint64_t chunk, size_t* bytes) const {
  if (slots_.empty()) return nullptr;
  size_t const index = chunk % slots_.size();
  const Slot& slot = slots_[index];
  if (slot.kept_bytes == 0 || slot.kept_chunk != chunk) return nullptr;
  *bytes = slot.kept_bytes;
  return history_.data() + index * settlement_.payload_bytes;
}

void Worker::finish_chunk(Nanos now, Slot* slot, Active* active, const uint8_t* result) {
  uint64_t const chunk = slot->chunk;
  free_slot(slot);
  newest_result_ = std::max(newest_result_, chunk + 1);
  progress_at_ = now;
  if (backed_off_ != 0) reset_backoff(now, chunk);
  bool const all_could_go = active->reduction.size_known();
  active->bytes_done += active->reduction.take(chunk - active->first_chunk, result);
  active->chunks_done += 1;
  offer(slot->chunk);
  if (!all_could_go) {
    offer(active->first_chunk, active->chunks);
    number_chunks();
  }
  if (!active->numbered() || active->chunks_done < active->chunks) return;
  active->reduction.finish();
  counters_.collectives_ok += 1;
  events_.push_back({.kind = WorkerEvent::Kind::completed,
                     .ok = true,
                     .sequence = active->sequence,
                     .bytes_done = active->bytes_done});
  active_.erase(std::find_if(active_.begin(), active_.end(),
                             [&](const Active& other) { return &other == active; }));
  if (state_ == WorkerState::breaking) end_break();
}

// Its chunk has its result: the next one on it may go.
void Worker::free_slot(Slot* slot) {
  if (slot->backoff != 0) backed_off_ -= 1;
  if (slot->state == SlotState::queued)
    std::erase(queue_, static_cast<uint32_t>(slot - slots_.data()));
  slot->state = SlotState::free;
  slot->again = false;
  slot->chunk += slots_.size();
  slot->attempt = 0;
  slot->backoff = 0;
  slot->deadline = kNever;
}

// The lane moves again: what waited with long pauses asks soon.
void Worker::reset_backoff(Nanos now, uint64_t below_chunk) {
  for (Slot& slot : slots_) {
    if (slot.state == SlotState::free || slot.chunk >= below_chunk || slot.backoff == 0) continue;
    slot.backoff = 0;
    backed_off_ -= 1;
    slot.deadline = std::min(slot.deadline, now + retransmit_after(0));
    slot_deadline_ = std::min(slot_deadline_, slot.deadline);
  }
}

void Worker::on_have(Nanos now, const Header& header) {
  counters_.haves_rx += 1;
  Slot* slot = outstanding(header.chunk);
  if (slot == nullptr || state_ != WorkerState::active) return;
  missing_ = all_of(config_.size) & ~header.bitmap;
  if (header.bitmap & bit_of(config_.rank)) {
    if (slot->state == SlotState::sent) slot->state = SlotState::held;
    return;
  }
  // Lost on the way up. The answer to an older question says nothing of what was sent since.
  if (slot->state == SlotState::queued || header.counter != slot->attempt) return;
  for (const Slot& other : slots_)
    if (other.state != SlotState::free) suspect_end_ = std::max(suspect_end_, other.chunk + 1);
  slot_deadline_ = std::min(slot_deadline_, now);
  enqueue(slot, false);
}

void Worker::on_void(const Header& header) {
  counters_.voids_rx += 1;
  if (state_ == WorkerState::active) {
    heartbeat_due_ = last_heard_;  // asks for the announcement that we missed
    return;
  }
  if (state_ != WorkerState::breaking || outstanding(header.chunk) == nullptr) return;
  for (size_t i = 0; i < active_.size(); ++i) {
    if (!active_[i].holds(header.chunk)) continue;
    fail(i);
    break;
  }
  end_break();
}

void Worker::on_ack(const Header& header, const Datagram& datagram) {
  if (datagram.payload != nullptr && datagram.payload_bytes == config_.size * 4U) {
    for (size_t rank = 0; rank < config_.size; ++rank)
      progress_[rank] = load_be<uint32_t>(datagram.payload + rank * 4);
    return;
  }
  bool const ends_leave =
      state_ == WorkerState::leaving && request_.type == NF_TYPE_LEAVE && answers_request(header);
  if (!ends_leave) return;
  state_ = WorkerState::left;
  request_ = {};
  heartbeat_due_ = kNever;
  events_.push_back({.kind = WorkerEvent::Kind::left});
}

void Worker::on_breakage(Nanos now, const Datagram& datagram) {
  Breakage body;
  if (datagram.payload == nullptr || !decode(datagram.payload, datagram.payload_bytes, &body)) {
    counters_.malformed += 1;
    return;
  }
  ack_due_ = settlement_.stream != 0 && state_ != WorkerState::left;
  begin_break(now, body);
}

// --- the lane -----------------------------------------------------------------------------------

uint64_t Worker::skip(uint64_t fingerprint) {
  ++sequence_;
  recent_[sequence_ % NF_HEARTBEAT_FINGERPRINTS] = fingerprint;
  return sequence_;
}

uint64_t Worker::submit(Nanos now, const Collective& what) {
  uint64_t const fingerprint = fingerprint_of(what);
  uint64_t const sequence = skip(fingerprint);
  if (state_ != WorkerState::active) {
    counters_.collectives_failed += 1;
    events_.push_back({.kind = WorkerEvent::Kind::completed, .sequence = sequence});
    return sequence;
  }
  active_.push_back({.reduction = Reduction(what, config_.size, settlement_.payload_bytes),
                     .fingerprint = fingerprint,
                     .op = what.op,
                     .deadline = what.deadline,
                     .sequence = sequence,
                     .submitted_at = now});
  if (what.mode == NF_MODE_FIXED32) staging_.resize(history_.size());
  number_chunks();
  return sequence;
}

// A collective's chunks follow those of the one before, so they are numbered in the order of
// submission, and only when it is known how many that one has. Every rank comes to the same.
void Worker::number_chunks() {
  if (state_ != WorkerState::active) return;
  for (Active& active : active_) {
    if (active.chunks == 0) active.first_chunk = end_chunk_;
    uint64_t const from = end_chunk_;
    end_chunk_ += active.reduction.chunks() - active.chunks;
    active.chunks = active.reduction.chunks();
    offer(from, end_chunk_ - from);
    if (!active.reduction.size_known()) return;
  }
}

// Queues those of a range whose turn it is on their slots, which need not be near each other: a
// slot runs on while another waits.
void Worker::offer(uint64_t first_chunk, uint64_t chunks) {
  for (uint64_t i = 0; i < slots_.size(); ++i) {
    uint64_t const due = slots_[(first_chunk + i) % slots_.size()].chunk;
    if (due - first_chunk < chunks) offer(due);
  }
}

void Worker::offer(uint64_t chunk) {
  Slot& slot = slots_[chunk % slots_.size()];
  bool const due = state_ == WorkerState::active && chunk < end_chunk_ &&
                   slot.state == SlotState::free && slot.chunk == chunk;
  if (!due) return;
  const Active& active = *find_active(chunk);
  if (active.reduction.can_send(chunk - active.first_chunk)) enqueue(&slot, false);
}

void Worker::enqueue(Slot* slot, bool probe) {
  slot->state = SlotState::queued;
  slot->probe = probe;
  slot->deadline = kNever;
  queue_.push_back(static_cast<uint32_t>(slot - slots_.data()));
}

// The slot of a chunk that was sent and has no result; null for any other.
Worker::Slot* Worker::outstanding(uint64_t chunk) {
  if (slots_.empty()) return nullptr;
  Slot& slot = slots_[chunk % slots_.size()];
  bool const sent = slot.state != SlotState::free && slot.attempt > 0;
  return sent && slot.chunk == chunk ? &slot : nullptr;
}

Worker::Active* Worker::find_active(uint64_t chunk) {
  auto const after = std::upper_bound(
      active_.begin(), active_.end(), chunk,
      [](uint64_t value, const Active& active) { return value < active.first_chunk; });
  return &*std::prev(after);
}

// RFC 6298, in integers.
void Worker::sample_round_trip(Nanos sample) {
  if (srtt_ == 0) {
    srtt_ = std::max<Nanos>(sample, 1);
    rttvar_ = sample / 2;
    return;
  }
  Nanos const error = sample > srtt_ ? sample - srtt_ : srtt_ - sample;
  rttvar_ += (error - rttvar_) / 4;
  srtt_ += (sample - srtt_) / 8;
}

Nanos Worker::retransmit_after(uint32_t backoff) const {
  Nanos const base = srtt_ == 0 ? config_.retransmit_initial
                                : std::clamp(srtt_ + 4 * rttvar_, config_.retransmit_min,
                                             std::max(kRetransmitMax, config_.retransmit_min));
  return std::min(base << std::min(backoff, kBackoffMax), std::max(config_.probe_max, base));
}

// --- time ---------------------------------------------------------------------------------------

void Worker::handle_timeout(Nanos now) {
  handle_silence(now);
  if (now >= seek_due()) seek(now);
  if (state_ == WorkerState::active) handle_collective_timeouts(now);
  if (now >= slot_deadline_) handle_slot_timeouts(now);
}

// Who repeats a question: the oldest chunk of the lane, and those a newer result overtook or that
// may have been lost with another. All others wait for these to be answered: waiting is cheap.
void Worker::handle_slot_timeouts(Nanos now) {
  slot_deadline_ = kNever;
  if (state_ != WorkerState::active && state_ != WorkerState::breaking) return;
  uint64_t oldest = ~uint64_t{0};
  for (const Slot& slot : slots_)
    if (slot.state != SlotState::free) oldest = std::min(oldest, slot.chunk);
  uint64_t const ask_below = std::max({oldest + 1, newest_result_, suspect_end_});
  bool const ask_all = state_ == WorkerState::breaking;
  for (Slot& slot : slots_) {
    if (slot.state != SlotState::sent && slot.state != SlotState::held) continue;
    if (slot.deadline <= now && (ask_all || slot.chunk < ask_below)) {
      enqueue(&slot, true);
      if (slot.backoff == 0) backed_off_ += 1;
      slot.backoff = std::min(slot.backoff + 1, kBackoffMax);
      continue;
    }
    if (slot.deadline <= now) slot.deadline = now + retransmit_after(0);
    slot_deadline_ = std::min(slot_deadline_, slot.deadline);
  }
}

void Worker::handle_collective_timeouts(Nanos now) {
  for (const Active& active : active_) {
    if (now < active.deadline || aborting_) continue;
    begin_abort(now, NF_CAUSE_TIMEOUT, active.sequence);
  }
  if (now < late_due()) return;
  Active& oldest = active_.front();
  oldest.late_reported = true;
  events_.push_back({.kind = WorkerEvent::Kind::late,
                     .sequence = oldest.sequence,
                     .bytes_done = oldest.bytes_done,
                     .ranks = missing_ & ~bit_of(config_.rank)});
}

Nanos Worker::late_due() const {
  if (active_.empty() || active_.front().late_reported) return kNever;
  return std::max(progress_at_, active_.front().submitted_at) + config_.late_after;
}

void Worker::handle_silence(Nanos now) {
  excuse_own_silence(now);
  if (now < silence_due()) return;
  if (state_ == WorkerState::breaking) return fail_all();
  break_alone(NF_CAUSE_AGGREGATOR_LOST, 0);
}

// Nobody called us for long: this process was stopped, and the silence is our own.
void Worker::excuse_own_silence(Nanos now) {
  if (heartbeat_due_ != kNever && now - heartbeat_due_ > config_.heartbeat) last_heard_ = now;
}

// Drivers send before they look at timers, so a heartbeat that is due does not bring us here.
Nanos Worker::silence_due() const {
  bool const member = state_ == WorkerState::active || state_ == WorkerState::breaking;
  return member ? last_heard_ + config_.lease + 1 : kNever;
}

Nanos Worker::poll_timeout() const {
  Nanos due = std::min({request_.due, heartbeat_due_, slot_deadline_, silence_due(), seek_due()});
  if (state_ == WorkerState::active) {
    for (const Active& active : active_)
      if (!aborting_) due = std::min(due, active.deadline);
    due = std::min(due, late_due());
  }
  if (ack_due_ || !queue_.empty()) due = std::min(due, last_heard_);
  return due;
}

// --- ends ---------------------------------------------------------------------------------------

void Worker::abort(Nanos now) {
  if (state_ == WorkerState::active) return begin_abort(now, NF_CAUSE_ABORT, 0);
  if (state_ == WorkerState::hello || state_ == WorkerState::joining ||
      state_ == WorkerState::waiting)
    break_alone(NF_CAUSE_ABORT, bit_of(config_.rank));
}

void Worker::abandon() {
  if (state_ == WorkerState::breaking) fail_all();
}

void Worker::adopt(Nanos now, const Breakage& breakage) {
  if (state_ == WorkerState::active && !aborting_) {
    own_abort_ = breakage;
    aborting_ = true;
    request(now, NF_TYPE_ABORT);
  } else if (state_ == WorkerState::hello || state_ == WorkerState::joining ||
             state_ == WorkerState::waiting) {
    breakage_ = breakage;
    events_.push_back({.kind = WorkerEvent::Kind::broken});
    fail_all();
  }
}

// Only the aggregator decides that a group is broken, so that all members see the same; we ask.
void Worker::begin_abort(Nanos now, uint8_t cause, uint64_t sequence) {
  own_abort_ = {.cause = cause,
                .ranks = bit_of(config_.rank),
                .added = all_of(config_.size) & ~missing_,
                .epoch = settlement_.epoch,
                .collective = static_cast<uint32_t>(sequence)};
  aborting_ = true;
  request(now, NF_TYPE_ABORT);
}

void Worker::begin_break(Nanos now, const Breakage& breakage) {
  if (state_ != WorkerState::active) {
    if (state_ == WorkerState::joining || state_ == WorkerState::waiting) {
      breakage_ = breakage;
      events_.push_back({.kind = WorkerEvent::Kind::broken});
      fail_all();
    }
    return;
  }
  state_ = WorkerState::breaking;
  breakage_ = breakage;
  stop_seeking(now);
  events_.push_back({.kind = WorkerEvent::Kind::broken});
  queue_.clear();
  for (Slot& slot : slots_) {
    if (slot.again) free_slot(&slot);  // its collective has its outcome
    if (slot.state == SlotState::free) continue;
    slot.state = slot.attempt == 0 ? SlotState::free : SlotState::sent;
    slot.deadline = slot.attempt == 0 ? kNever : now;
  }
  slot_deadline_ = now;
  // What we never sent cannot be complete; of the rest the aggregator knows.
  for (size_t i = active_.size(); i-- > 0;)
    if (!all_sent(active_[i])) fail(i);
  end_break();
}

bool Worker::all_sent(const Active& active) const {
  uint64_t sent = active.chunks_done;
  for (const Slot& slot : slots_)
    if (slot.state != SlotState::free && active.holds(slot.chunk)) sent += 1;
  return active.numbered() && sent == active.chunks;
}

void Worker::end_break() {
  if (state_ != WorkerState::breaking || !active_.empty()) return;
  state_ = WorkerState::broken;
  heartbeat_due_ = kNever;
  slot_deadline_ = kNever;
}

// Our own verdict, where no aggregator can be asked.
void Worker::break_alone(uint8_t cause, uint64_t ranks) {
  breakage_ = {.cause = cause,
               .ranks = ranks,
               .added = all_of(config_.size) & ~missing_,
               .epoch = settlement_.epoch};
  if (!active_.empty()) breakage_.collective = static_cast<uint32_t>(active_.front().sequence);
  events_.push_back({.kind = WorkerEvent::Kind::broken});
  fail_all();
}

void Worker::free_slots_of(const Active& active) {
  for (Slot& slot : slots_)
    if (slot.state != SlotState::free && active.holds(slot.chunk)) {
      slot.state = SlotState::free;
      slot.deadline = kNever;
    }
}

void Worker::fail(size_t index) {
  free_slots_of(active_[index]);
  std::erase_if(queue_, [&](uint32_t i) { return slots_[i].state == SlotState::free; });
  events_.push_back({.kind = WorkerEvent::Kind::completed,
                     .sequence = active_[index].sequence,
                     .bytes_done = active_[index].bytes_done});
  active_.erase(active_.begin() + static_cast<ptrdiff_t>(index));
  counters_.collectives_failed += 1;
}

void Worker::fail_all() {
  while (!active_.empty()) fail(0);
  queue_.clear();
  state_ = WorkerState::broken;
  joining_ = Joining::no;
  request_ = {};
  heartbeat_due_ = kNever;
  slot_deadline_ = kNever;
}

void Worker::leave(Nanos now) {
  bool const known = settlement_.stream != 0 && state_ != WorkerState::refused &&
                     breakage_.cause != NF_CAUSE_AGGREGATOR_LOST;
  if (state_ == WorkerState::leaving || state_ == WorkerState::left) return;
  if (breakage_.cause == 0)
    break_alone(NF_CAUSE_ABORT, bit_of(config_.rank));
  else
    fail_all();
  state_ = known ? WorkerState::leaving : WorkerState::left;
  if (known)
    request(now, NF_TYPE_LEAVE);
  else
    events_.push_back({.kind = WorkerEvent::Kind::left});
}

// --- sending ------------------------------------------------------------------------------------

void Worker::request(Nanos now, uint8_t type) {
  request_ = {.type = type, .first_id = next_request_, .last_id = next_request_, .due = now};
}

bool Worker::poll_transmit(Nanos now, Transmit* out) {
  out->addresses = nullptr;
  out->receivers = 1;
  out->payload = nullptr;
  out->payload_bytes = 0;
  if (ack_due_) {
    ack_due_ = false;
    fill_control(NF_TYPE_ACK, nullptr, 0, out);
  } else if (now >= heartbeat_due_) {
    excuse_own_silence(now);
    heartbeat_due_ = now + config_.heartbeat;
    fill_heartbeat(out);
  } else if (now >= request_.due) {
    fill_request(now, out);
  } else if (!queue_.empty()) {
    Slot* slot = &slots_[queue_.front()];
    queue_.pop_front();
    fill_chunk(now, slot, out);
  } else {
    return false;
  }
  counters_.packets_tx += 1;
  counters_.bytes_tx += out->head_bytes + out->payload_bytes;
  return true;
}

// All chunks below have their results.
uint64_t Worker::low_watermark() const {
  uint64_t low = end_chunk_;
  for (const Slot& slot : slots_) low = std::min(low, slot.chunk);
  return low;
}

// The newest fingerprint first.
void Worker::fill_heartbeat(Transmit* out) {
  uint8_t body[NF_HEARTBEAT_FINGERPRINTS * 8];
  uint64_t const count = std::min<uint64_t>(sequence_, NF_HEARTBEAT_FINGERPRINTS);
  for (uint64_t i = 0; i < count; ++i)
    store_be(body + i * 8, recent_[(sequence_ - i) % NF_HEARTBEAT_FINGERPRINTS]);
  fill_control(NF_TYPE_HEARTBEAT, body, count * 8, out);
}

void Worker::fill_control(uint8_t type, const uint8_t* body, size_t bytes, Transmit* out) {
  Header header;
  header.type = type;
  header.stream = settlement_.stream;
  header.node = settlement_.node;
  header.rank = config_.rank;
  header.elements = static_cast<uint16_t>(bytes);  // of dtype uint8
  header.counter = next_request_++;
  header.collective = static_cast<uint32_t>(sequence_);
  header.chunk = low_watermark();
  if (bytes > 0) std::memcpy(out->head + NF_HEADER_BYTES, body, bytes);
  out->head_bytes = NF_HEADER_BYTES + bytes;
  seal(header, out, type != NF_TYPE_HELLO);
}

void Worker::fill_chunk(Nanos now, Slot* slot, Transmit* out) {
  slot->state = SlotState::sent;
  slot->attempt += 1;
  slot->sent_at = now;
  slot->deadline = now + retransmit_after(slot->backoff);
  slot_deadline_ = std::min(slot_deadline_, slot->deadline);
  Header header;
  header.type = slot->probe ? NF_TYPE_PROBE : NF_TYPE_DATA;
  header.flags = slot->attempt > 1 ? NF_FLAG_RESEND : 0;
  header.stream = settlement_.stream;
  header.node = settlement_.node;
  header.chunk = slot->chunk;
  header.rank = config_.rank;
  header.counter = slot->attempt;
  out->head_bytes = NF_HEADER_BYTES;
  fill_data(slot, &header, out);
  seal(header, out, true);
}

void Worker::fill_data(Slot* slot, Header* out_header, Transmit* out) {
  Header& header = *out_header;
  const Active* active = slot->again ? nullptr : find_active(slot->chunk);
  header.op = slot->again ? slot->kept.op : active->op;
  header.fingerprint = slot->again ? slot->kept.fingerprint : active->fingerprint;
  header.collective = slot->again ? slot->kept.collective : static_cast<uint32_t>(active->sequence);
  if (slot->probe) {
    counters_.probes_tx += 1;
    return;
  }
  header.ranks = 1;
  header.bitmap = bit_of(config_.rank);
  auto const at = static_cast<size_t>(slot - slots_.data()) * settlement_.payload_bytes;
  if (slot->again) {
    header.flags |= NF_FLAG_FINAL;
    header.dtype = slot->kept.dtype;
    header.elements = slot->kept.elements;
    out->payload = history_.data() + at;
    out->payload_bytes = slot->kept_bytes;
  } else {
    uint64_t const index = slot->chunk - active->first_chunk;
    Reduction::Chunk const chunk = active->reduction.chunk(index);
    header.op = chunk.op;
    header.dtype = chunk.dtype;
    header.elements = chunk.elements;
    out->payload =
        active->reduction.contribution(index, staging_.empty() ? nullptr : staging_.data() + at);
    out->payload_bytes = chunk.bytes;
  }
  counters_.data_tx += 1;
  counters_.data_resent += slot->attempt > 1 ? 1 : 0;
}

void Worker::seal(const Header& header, Transmit* out, bool tagged) {
  encode_header(header, out->head);
  const uint8_t* payload = out->payload;
  size_t payload_bytes = out->payload_bytes;
  if (out->head_bytes > NF_HEADER_BYTES) {
    payload = out->head + NF_HEADER_BYTES;
    payload_bytes = out->head_bytes - NF_HEADER_BYTES;
  }
  seal_packet(out->head, payload, payload_bytes, tagged ? &config_.key : nullptr);
}

bool Worker::poll_event(WorkerEvent* out) {
  if (events_.empty()) return false;
  *out = events_.front();
  events_.pop_front();
  return true;
}

}  // namespace netfold
