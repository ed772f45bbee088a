#include <algorithm>
#include <bit>

#include "core/bytes.h"
#include "core/kernels.h"
#include "core/switch_state.h"

namespace netfold {
namespace {

constexpr size_t kOutgoingMax = 1 << 16;
constexpr size_t kEventsMax = 1 << 12;

uint8_t announcement_type(uint8_t cause) {
  if (cause == NF_CAUSE_GONE) return NF_TYPE_GONE;
  return cause == NF_CAUSE_MISMATCH ? NF_TYPE_MISMATCH : NF_TYPE_ABORT;
}

}  // namespace

Switch::Switch(const SwitchConfig& config, Nanos now)
    : config_(config), next_stream_(std::max(config.first_stream, 1U)) {
  (void)now;
}

Switch::~Switch() = default;

// --- receiving ----------------------------------------------------------------------------------

void Switch::handle_packet(Nanos now, const Address& from, const Datagram& datagram) {
  discard_sent();
  counters_.packets_rx += 1;
  counters_.bytes_rx += NF_HEADER_BYTES + datagram.payload_bytes;
  Header header;
  switch (decode_packet(datagram, &header)) {
    case PacketError::foreign:
      counters_.foreign += 1;
      return;
    case PacketError::malformed:
      counters_.malformed += 1;
      return;
    case PacketError::crc:
      counters_.bad_crc += 1;
      return;
    case PacketError::version:
      counters_.bad_version += 1;
      if (header.type != NF_TYPE_HELLO || datagram.payload_bytes < kHelloBytes) return;
      break;
    case PacketError::none:
      break;
  }
  if (header.type == NF_TYPE_HELLO) return on_untagged(from, header, datagram);
  if (header.type == NF_TYPE_JOIN) return on_join(now, from, header, datagram);
  auto const found = streams_.find(header.stream);
  if (found == streams_.end()) {
    counters_.unknown_stream += 1;
    return;
  }
  Group* group = found->second;
  if (!tag_is_valid(datagram.header, group->job->key)) {
    counters_.bad_tag += 1;
    return;
  }
  if (header.rank >= group->size || !(group->joined & bit_of(header.rank))) {
    counters_.unexpected += 1;
    return;
  }
  on_member_packet(now, from, header, datagram, group);
}

void Switch::on_member_packet(Nanos now, const Address& from, const Header& header,
                              const Datagram& datagram, Group* group) {
  Member& member = group->members[header.rank];
  if (!group->settled) {
    if (header.type == NF_TYPE_LEAVE && is_fresh(header, group))
      on_leave(now, header, group);
    else
      counters_.unexpected += 1;
    return;
  }
  if (!(group->dead & bit_of(header.rank))) member.last_heard = now;
  switch (header.type) {
    case NF_TYPE_DATA:
      return on_data(now, header, datagram, group);
    case NF_TYPE_PROBE:
      counters_.probes_rx += 1;
      return on_probe(now, header, group);
    case NF_TYPE_HEARTBEAT:
    case NF_TYPE_LEAVE:
    case NF_TYPE_ABORT:
    case NF_TYPE_ACK:
      if (!is_fresh(header, group)) return;
      group->addresses[header.rank] = from;  // a fresh tagged packet: reply where it came from
      member.watermark = std::max(member.watermark, header.chunk);
      return on_control(now, header, datagram, group);
    default:
      counters_.unexpected += 1;
  }
}

void Switch::on_control(Nanos now, const Header& header, const Datagram& datagram, Group* group) {
  switch (header.type) {
    case NF_TYPE_HEARTBEAT:
      if (group->broken) announce(group, bit_of(header.rank));
      return on_heartbeat(now, header, datagram, group);
    case NF_TYPE_LEAVE:
      return on_leave(now, header, group);
    case NF_TYPE_ABORT:
      return on_abort(now, header, datagram, group);
    default:  // Ack
      group->unacknowledged &= ~bit_of(header.rank);
  }
}

// Every control message takes a new request id, so an older one is a replay or overtaken.
bool Switch::is_fresh(const Header& header, Group* group) {
  Member& member = group->members[header.rank];
  if (static_cast<int32_t>(header.counter - member.last_request) <= 0) {
    counters_.replayed += 1;
    return false;
  }
  member.last_request = header.counter;
  return true;
}

// --- the data path ------------------------------------------------------------------------------

bool Switch::data_is_wellformed(const Header& header, const Group& group) const {
  return header.elements > 0 &&
         header.elements * dtype_bytes(header.dtype) <= group.payload_bytes &&
         kernel_exists(header.op, header.dtype) && group.children.whole(header) &&
         header.chunk >= group.first_chunk;
}

void Switch::on_data(Nanos now, const Header& header, const Datagram& datagram, Group* group) {
  counters_.data_rx += 1;
  if (!data_is_wellformed(header, *group)) {
    counters_.malformed += 1;
    return;
  }
  if (group->broken) return on_probe(now, header, group);
  Member& member = group->members[header.rank];
  if (static_cast<int32_t>(header.collective - member.collective) > 0)
    member.collective = header.collective;
  uint32_t const slots = group->slots.size();
  Slot& slot = group->slots.of(header.chunk);
  uint32_t const index = nf_slot_version(header.chunk, slots);
  nf_slot_head* head = &slot.heads[index];
  nf_slot_head* other = &slot.heads[1 - index];
  SlotVersion& version = slot.versions[index];
  uint64_t const owner = nf_slot_owner(group->stream, header.chunk);
  bool const holds = head->state != NF_SLOT_EMPTY && head->owner == owner;
  if (holds &&
      (version.fingerprint != header.fingerprint || version.collective != header.collective)) {
    return break_group(now, group,
                       {.cause = NF_CAUSE_MISMATCH,
                        .ranks = bit_of(version.first_rank) | bit_of(header.rank),
                        .rank_a = version.first_rank,
                        .rank_b = header.rank,
                        .collective_a = version.collective,
                        .collective_b = header.collective,
                        .fingerprint_a = version.fingerprint,
                        .fingerprint_b = header.fingerprint});
  }
  if (holds && (version.op != header.op || version.dtype != header.dtype ||
                version.elements != header.elements)) {
    counters_.malformed += 1;
    return;
  }
  bool const first_on_slot = head->state == NF_SLOT_EMPTY && other->state == NF_SLOT_EMPTY;
  if (first_on_slot && !group->may_begin_with(header.chunk)) {
    counters_.early += 1;
    return;
  }
  switch (nf_slot_add(head, other, owner, header.bitmap, header.ranks, header.rank, group->target(),
                      slots)) {
    case NF_VERDICT_FIRST:
      version = {.chunk = header.chunk,
                 .fingerprint = header.fingerprint,
                 .collective = header.collective,
                 .elements = header.elements,
                 .first_rank = header.rank,
                 .op = header.op,
                 .dtype = header.dtype,
                 .counted = datagram.payload == nullptr};
      slot.early_children = 0;
      [[fallthrough]];
    case NF_VERDICT_ADD:
      if (datagram.payload != nullptr && (header.flags & NF_FLAG_FINAL))
        group->slots.replace(&slot, index, datagram.payload);
      else if (datagram.payload != nullptr)
        group->slots.add(&slot, index, group->children.index_of(header.rank), datagram.payload);
      if (head->state == NF_SLOT_COMPLETE)
        complete(header, group, &slot, index);
      else if (group->left & ~head->added)
        break_for_the_gone(now, group);
      return;
    case NF_VERDICT_DUPLICATE:
    case NF_VERDICT_SERVE:
      counters_.duplicates += 1;
      return on_probe(now, header, group);
    case NF_VERDICT_LATE:
      counters_.late += 1;
      return;
    case NF_VERDICT_EARLY:
      counters_.early += 1;
  }
}

// A Probe that came through a switch below says what that has of the chunk.
void Switch::note_known(Nanos now, const Header& probe, Group* group) {
  if (probe.bitmap == 0 || group->broken) return;
  uint64_t const behind = group->children.behind(probe.rank);
  if (probe.chunk > group->known_chunk) group->known = 0;
  group->known_chunk = std::max(group->known_chunk, probe.chunk);
  if (probe.chunk == group->known_chunk) group->known |= probe.bitmap & behind;
  uint64_t const missing = group->left & behind & ~probe.bitmap;
  if (missing != 0) break_group(now, group, {.cause = NF_CAUSE_GONE, .ranks = missing});
}

void Switch::complete(const Header& last, Group* group, Slot* slot, uint32_t index) {
  SlotVersion& version = slot->versions[index];
  version.counter = last.counter;
  counters_.chunks_completed += 1;
  if (!version.counted && !version.final)
    finish(version.op, version.dtype, slot->sums[index], version.elements, group->size);
  send_result(group, *slot, index, group->present());
}

// Also what a Data that adds nothing is answered with.
void Switch::on_probe(Nanos now, const Header& header, Group* group) {
  Header reply;
  reply.stream = group->stream;
  reply.node = config_.node;
  reply.chunk = header.chunk;
  reply.rank = header.rank;
  reply.counter = header.counter;
  reply.collective = header.collective;
  reply.type = group->broken ? NF_TYPE_VOID : NF_TYPE_HAVE;
  if (group->closed) return send_header(reply, group, bit_of(header.rank));
  const Slot& slot = group->slots.of(header.chunk);
  uint32_t const index = nf_slot_version(header.chunk, group->slots.size());
  const nf_slot_head& head = slot.heads[index];
  uint64_t const owner = nf_slot_owner(group->stream, header.chunk);
  switch (nf_slot_probe(&head, owner, header.rank)) {
    case NF_VERDICT_SERVE:
      counters_.results_resent += 1;
      return send_result(group, slot, index, bit_of(header.rank));
    case NF_VERDICT_LATE:
      counters_.late += 1;
      return;
    default:
      note_known(now, header, group);
      if (group->broken && reply.type != NF_TYPE_VOID) return;
  }
  bool const holds = head.state != NF_SLOT_EMPTY && head.owner == owner;
  uint64_t const added = holds ? head.added : 0;
  reply.bitmap = added | (header.chunk == group->known_chunk ? group->known : 0);
  // What a switch below had complete was lost on the way here.
  if (header.bitmap == group->children.behind(header.rank) && !(added & header.bitmap))
    reply.flags = NF_FLAG_RESEND;
  reply.ranks = static_cast<uint16_t>(std::popcount(reply.bitmap));
  if (!group->broken) counters_.haves_tx += 1;
  send_header(reply, group, bit_of(header.rank));
}

// --- control ------------------------------------------------------------------------------------

void Switch::on_heartbeat(Nanos now, const Header& header, const Datagram& datagram, Group* group) {
  Member& member = group->members[header.rank];
  if (datagram.payload_bytes > sizeof member.fingerprints || datagram.payload_bytes % 8 != 0) {
    counters_.malformed += 1;
    return;
  }
  if (datagram.payload != nullptr && !group->broken) {
    member.told = header.collective;
    member.fingerprints_told = static_cast<uint32_t>(datagram.payload_bytes / 8);
    for (uint32_t i = 0; i < member.fingerprints_told; ++i)
      member.fingerprints[i] = load_be<uint64_t>(datagram.payload + i * 8);
    compare_fingerprints(now, header.rank, group);
  }
  if (static_cast<int32_t>(header.collective - member.collective) > 0)
    member.collective = header.collective;
  uint8_t body[kControlBytesMax];
  for (uint16_t rank = 0; rank < group->size; ++rank) {
    uint32_t const collective = group->members[rank].collective;
    for (size_t i = 0; i < 4; ++i)
      body[rank * 4U + i] = static_cast<uint8_t>(collective >> (24 - 8 * i));
  }
  Header reply;
  reply.type = NF_TYPE_ACK;
  reply.rank = header.rank;
  reply.counter = header.counter;
  send_control(reply, body, group->size * 4U, group, bit_of(header.rank));
}

// Finds ranks that disagree where no chunk of theirs meets: on another lane, or another path.
void Switch::compare_fingerprints(Nanos now, uint16_t rank, Group* group) {
  const Member& mine = group->members[rank];
  for (uint16_t other = 0; other < group->size; ++other) {
    const Member& theirs = group->members[other];
    for (uint32_t i = mine.fingerprints_told; other != rank && i-- > 0;) {
      uint32_t const collective = mine.told - i;  // the oldest first
      uint32_t const j = theirs.told - collective;
      if (j >= theirs.fingerprints_told || mine.fingerprints[i] == theirs.fingerprints[j]) continue;
      return break_group(
          now, group,
          {.cause = NF_CAUSE_MISMATCH,
           .ranks = bit_of(rank) | bit_of(other),
           .collective = collective,
           .rank_a = std::min(rank, other),
           .rank_b = std::max(rank, other),
           .collective_a = collective,
           .collective_b = collective,
           .fingerprint_a = rank < other ? mine.fingerprints[i] : theirs.fingerprints[j],
           .fingerprint_b = rank < other ? theirs.fingerprints[j] : mine.fingerprints[i]});
    }
  }
}

void Switch::on_leave(Nanos now, const Header& header, Group* group) {
  Header reply;
  reply.type = NF_TYPE_ACK;
  reply.rank = header.rank;
  reply.counter = header.counter;
  send_header(reply, group, bit_of(header.rank));
  if (!group->settled) {
    group->joined &= ~bit_of(header.rank);
    return;
  }
  group->left |= bit_of(header.rank);
  group->unacknowledged &= ~bit_of(header.rank);
  break_for_the_gone(now, group);
  house_due_ = std::min(house_due_, now);
}

// A chunk that a member who left can no longer add to never completes.
void Switch::break_for_the_gone(Nanos now, Group* group) {
  if (group->broken) return;
  uint64_t missing = 0;
  for (const Slot& slot : group->slots)
    for (const nf_slot_head& head : slot.heads)
      if (head.state == NF_SLOT_COLLECTING) missing |= group->left & ~head.added;
  if (missing != 0) break_group(now, group, {.cause = NF_CAUSE_GONE, .ranks = missing});
}

void Switch::on_abort(Nanos now, const Header& header, const Datagram& datagram, Group* group) {
  Breakage body;
  if (datagram.payload == nullptr || !decode(datagram.payload, datagram.payload_bytes, &body) ||
      body.cause == 0) {
    counters_.malformed += 1;
    return;
  }
  if (group->broken) return announce(group, bit_of(header.rank));
  break_group(now, group, body);
}

// Nothing is added from here on: completed chunks are served, all others are void. So every
// survivor comes to the same outcome for every collective (invariant 6).
void Switch::break_group(Nanos now, Group* group, Breakage breakage) {
  const SlotVersion* oldest = nullptr;
  for (const Slot& slot : group->slots)
    for (size_t v = 0; v < 2; ++v)
      if (slot.heads[v].state == NF_SLOT_COLLECTING &&
          (oldest == nullptr || slot.versions[v].chunk < oldest->chunk)) {
        oldest = &slot.versions[v];
        breakage.added = slot.heads[v].added;
        breakage.chunk = oldest->chunk;
      }
  if (breakage.collective == 0 && oldest != nullptr) breakage.collective = oldest->collective;
  if (oldest == nullptr || oldest->chunk == group->known_chunk) breakage.added |= group->known;
  breakage.epoch = group->epoch;
  group->broken = true;
  group->breakage = breakage;
  group->ended_at = now;
  group->unacknowledged = group->present();
  group->announcements = 0;
  announce(group, group->joined & ~group->left);
  group->announce_due = now + config_.announce_repeat;
  house_due_ = std::min(house_due_, group->announce_due);
  report({.kind = SwitchEvent::Kind::group_broken,
          .job = group->job->name,
          .group = group->id,
          .size = group->size,
          .breakage = breakage});
}

void Switch::break_all(Nanos now, const Breakage& why) {
  draining_ = true;
  for (auto& [name, job] : jobs_)
    for (auto& [id, group] : job->groups)
      if (group->settled && !group->broken && !group->closed && group->present() != 0)
        break_group(now, group.get(), why);
}

// --- time ---------------------------------------------------------------------------------------

void Switch::handle_timeout(Nanos now) {
  if (now < house_due_) return;
  discard_sent();
  house_due_ = kNever;
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    auto& groups = job->second->groups;
    for (auto it = groups.begin(); it != groups.end();) {
      Group* group = it->second.get();
      keep_house(now, group);
      bool const remembered = group->broken || group->refusal != 0;
      if (group->closed && (!remembered || now >= group->ended_at + config_.tombstone)) {
        purge_outgoing(group);
        streams_.erase(group->stream);
        it = groups.erase(it);
      } else {
        house_due_ = group->closed ? std::min(house_due_, group->ended_at + config_.tombstone)
                                   : std::min(house_due_, now + kHousePeriod);
        ++it;
      }
    }
    job = groups.empty() ? jobs_.erase(job) : std::next(job);
  }
}

void Switch::keep_house(Nanos now, Group* group) {
  if (group->closed) return;
  uint64_t silent = 0;
  for (uint16_t rank = 0; rank < group->size; ++rank)
    if ((group->present() & bit_of(rank)) && now - group->members[rank].last_heard >= config_.lease)
      silent |= bit_of(rank);
  if (!group->settled && group->epoch > 1 && now - group->opened_at >= config_.lease) {
    // Who has not come again within a lease is gone.
    uint64_t const missing = group->target() & ~group->joined;
    settle(now, group);
    if (group->settled) break_group(now, group, {.cause = NF_CAUSE_GONE, .ranks = missing});
    return;
  }
  if (!group->settled) {
    group->joined &= ~silent;  // a rank that died while others wait for it may come again
    if (group->joined == 0) close_group(group);
    return;
  }
  group->dead |= silent;
  group->unacknowledged &= ~silent;
  if (silent != 0 && !group->broken)
    break_group(now, group, {.cause = NF_CAUSE_GONE, .ranks = silent});
  if (group->broken && now >= group->announce_due && group->unacknowledged != 0 &&
      group->announcements < config_.announce_max) {
    announce(group, group->unacknowledged);
    group->announcements += 1;
    Nanos const wait = config_.announce_repeat << std::min(group->announcements, 4U);
    group->announce_due = now + wait;
  }
  if (group->present() == 0) {
    group->ended_at = now;
    close_group(group);
  }
}

// Gives the slots back. A group that broke, or was refused, stays as a tombstone that answers why.
void Switch::close_group(Group* group) {
  if (group->closed) return;
  group->closed = true;
  purge_outgoing(group);
  group->slots.close();
  counters_.memory_bytes -= group->memory_bytes;
  counters_.groups_open -= 1;
  group->memory_bytes = 0;
  report({.kind = SwitchEvent::Kind::group_closed,
          .job = group->job->name,
          .group = group->id,
          .size = group->size});
}

// Makes room by forgetting the tombstone that ended first; false where there is none.
bool Switch::evict_tombstone() {
  Group* oldest = nullptr;
  for (auto& [stream, group] : streams_)
    if (group->closed && (oldest == nullptr || group->ended_at < oldest->ended_at ||
                          (group->ended_at == oldest->ended_at && stream < oldest->stream)))
      oldest = group;
  if (oldest == nullptr) return false;
  Job* job = oldest->job;
  purge_outgoing(oldest);
  streams_.erase(oldest->stream);
  job->groups.erase(oldest->id);
  if (job->groups.empty()) jobs_.erase(std::pair(job->name, job->incarnation));
  return true;
}

// What was handed out stays where it is until the next handle_*.
void Switch::discard_sent() {
  outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<ptrdiff_t>(sent_));
  sent_ = 0;
}

void Switch::purge_outgoing(const Group* group) {
  discard_sent();
  std::erase_if(outgoing_, [&](const Outgoing& o) { return o.group == group; });
}

// --- sending ------------------------------------------------------------------------------------

void Switch::push(Outgoing&& outgoing, uint64_t copies) {
  if (outgoing_.size() >= kOutgoingMax) {
    counters_.transmit_dropped += copies;
    return;
  }
  counters_.packets_tx += copies;
  counters_.bytes_tx += copies * (outgoing.transmit.head_bytes + outgoing.transmit.payload_bytes);
  outgoing_.push_back(std::move(outgoing));
}

// Header and body of a control message, sealed; the caller says who receives it.
void Switch::fill_control(Header header, const uint8_t* body, size_t bytes, const Key* key,
                          Transmit* out) const {
  header.elements = static_cast<uint16_t>(bytes);  // of dtype uint8
  header.node = config_.node;
  encode_header(header, out->head);
  if (bytes > 0) std::memcpy(out->head + NF_HEADER_BYTES, body, bytes);
  out->head_bytes = NF_HEADER_BYTES + bytes;
  seal_packet(out->head, out->head + NF_HEADER_BYTES, bytes, key);
}

void Switch::send_to(const Address& to, const Header& header, const uint8_t* body, size_t bytes,
                     const Key* key) {
  Outgoing outgoing;
  fill_control(header, body, bytes, key, &outgoing.transmit);
  outgoing.transmit.receivers = 1;
  outgoing.to = to;
  push(std::move(outgoing), 1);
}

void Switch::send_control(Header header, const uint8_t* body, size_t bytes, Group* group,
                          uint64_t receivers) {
  if (receivers == 0) return;
  Outgoing outgoing;
  header.stream = group->stream;
  fill_control(header, body, bytes, &group->job->key, &outgoing.transmit);
  outgoing.transmit.addresses = group->addresses.data();
  outgoing.transmit.receivers = receivers;
  outgoing.group = group;
  push(std::move(outgoing), static_cast<uint64_t>(std::popcount(receivers)));
}

void Switch::send_header(Header header, Group* group, uint64_t receivers) {
  send_control(header, nullptr, 0, group, receivers);
}

void Switch::send_joined(Group* group, uint16_t rank) {
  uint8_t body[kControlBytesMax];
  size_t const bytes = encode(JoinedBody{.settled = group->settled,
                                         .payload_bytes = group->payload_bytes,
                                         .window = group->window,
                                         .node = config_.node,
                                         .stream = group->stream,
                                         .epoch = group->epoch,
                                         .first_chunk = group->first_chunk,
                                         .joined = group->joined,
                                         .phases = group->phases},
                              body);
  Header reply;
  reply.type = NF_TYPE_JOINED;
  reply.fingerprint = group->id;
  reply.rank = rank;
  reply.counter = group->members[rank].last_request;
  send_control(reply, body, bytes, group, bit_of(rank));
}

void Switch::send_result(Group* group, const Slot& slot, uint32_t index, uint64_t receivers) {
  const nf_slot_head& head = slot.heads[index];
  const SlotVersion& version = slot.versions[index];
  Header header;
  header.type = NF_TYPE_RESULT;
  header.op = version.op;
  header.dtype = version.dtype;
  header.stream = group->stream;
  header.node = config_.node;
  header.ranks = static_cast<uint16_t>(head.ranks);
  header.chunk = version.chunk;
  header.bitmap = head.added;
  header.elements = version.elements;
  header.rank = static_cast<uint16_t>(head.last);
  header.counter = version.counter;
  header.fingerprint = version.fingerprint;
  header.collective = version.collective;
  Outgoing outgoing;
  Transmit& transmit = outgoing.transmit;
  encode_header(header, transmit.head);
  transmit.head_bytes = NF_HEADER_BYTES;
  transmit.addresses = group->addresses.data();
  transmit.receivers = group->children.one_each(receivers);
  transmit.payload = version.counted ? nullptr : slot.sums[index];
  transmit.payload_bytes = version.bytes();
  seal_packet(transmit.head, transmit.payload, transmit.payload_bytes, &group->job->key);
  outgoing.group = group;
  auto const copies = static_cast<uint64_t>(std::popcount(transmit.receivers));
  counters_.results_tx += copies;
  push(std::move(outgoing), copies);
}

void Switch::announce(Group* group, uint64_t receivers) {
  uint8_t body[kControlBytesMax];
  size_t const bytes = encode(group->breakage, body);
  Header header;
  header.type = announcement_type(group->breakage.cause);
  send_control(header, body, bytes, group, group->children.one_each(receivers));
}

bool Switch::poll_transmit(Nanos now, Transmit* out) {
  (void)now;
  if (sent_ == outgoing_.size()) return false;
  const Outgoing& outgoing = outgoing_[sent_++];
  out->addresses = outgoing.group == nullptr ? &outgoing.to : outgoing.transmit.addresses;
  out->receivers = outgoing.transmit.receivers;
  out->payload = outgoing.transmit.payload;
  out->payload_bytes = outgoing.transmit.payload_bytes;
  out->head_bytes = outgoing.transmit.head_bytes;
  std::memcpy(out->head, outgoing.transmit.head, outgoing.transmit.head_bytes);
  return true;
}

Nanos Switch::poll_timeout() const {
  return house_due_;
}

void Switch::report(SwitchEvent&& event) {
  if (events_.size() < kEventsMax) events_.push_back(std::move(event));
}

bool Switch::poll_event(SwitchEvent* out) {
  if (events_.empty()) return false;
  *out = std::move(events_.front());
  events_.pop_front();
  return true;
}

bool Switch::drained() const {
  return draining_ && counters_.groups_open == 0;
}

bool Switch::owes_nothing() const {
  return std::all_of(streams_.begin(), streams_.end(), [](const auto& entry) {
    const Group& group = *entry.second;
    uint64_t end = 0;
    for (const Slot& slot : group.slots)
      for (size_t v = 0; v < 2; ++v)
        if (slot.heads[v].state == NF_SLOT_COMPLETE)
          end = std::max(end, slot.versions[v].chunk + 1);
    for (uint64_t left = group.present(); left != 0 && !group.closed; left &= left - 1)
      if (group.members[static_cast<size_t>(std::countr_zero(left))].watermark < end) return false;
    return true;
  });
}

bool Switch::announcing() const {
  return std::any_of(streams_.begin(), streams_.end(), [&](const auto& entry) {
    const Group& group = *entry.second;
    return !group.closed && group.unacknowledged != 0 && group.announcements < config_.announce_max;
  });
}

uint32_t Switch::size_of(uint32_t stream) const {
  return streams_.at(stream)->size;
}

const nf_slot_head* Switch::slot_heads(uint32_t stream, uint64_t chunk) const {
  auto const found = streams_.find(stream);
  if (found == streams_.end() || found->second->slots.empty()) return nullptr;
  return found->second->slots.of(chunk).heads;
}

}  // namespace netfold
