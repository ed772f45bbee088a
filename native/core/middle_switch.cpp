#include "core/middle_switch.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/bytes.h"
#include "core/kernels.h"

namespace netfold {
namespace {

constexpr Nanos kHousePeriod = kSecond;
constexpr int kSilentLeases = 2;  // after which a group has ended, however
constexpr uint16_t kPayloadBytesMin = 8;
constexpr size_t kEventsMax = 1 << 12;
constexpr size_t kOutgoingMax = 1 << 16;

bool is_newer(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(a - b) > 0;
}

}  // namespace

struct MiddleSwitch::Group {
  struct Child {
    uint64_t nonce = 0;
    Nanos joined_at = 0;  // its last Join
    uint32_t last_request = 0;
    uint32_t leave_request = 0;
  };
  struct Result {  // of the whole group, by version of a slot; its elements replace the sum
    bool here = false;
    uint8_t head[NF_HEADER_BYTES];
  };

  std::string job;
  uint64_t id = 0;
  Key key{};
  uint16_t size = 0;
  bool settled = false;
  bool broken = false;
  uint64_t joined = 0;  // through us
  uint64_t left = 0;
  uint64_t dead = 0;
  Nanos last_heard = 0;
  std::vector<Child> members;      // by rank
  std::vector<Address> addresses;  // by rank
  JoinedBody terms{};
  Children children;
  Slots slots;
  std::vector<Result> results;  // two for each slot
  uint64_t memory_bytes = 0;

  [[nodiscard]] uint64_t present() const { return joined & ~left & ~dead; }
  [[nodiscard]] uint32_t version_of(uint64_t chunk) const {
    return nf_slot_version(chunk, slots.size());
  }
  [[nodiscard]] Result& result_of(uint64_t chunk) {
    return results[nf_slot_index(chunk, slots.size()) * 2 + version_of(chunk)];
  }
  // The head that holds `chunk`, or null.
  [[nodiscard]] const nf_slot_head* head_of(uint64_t chunk) const {
    const nf_slot_head& head = slots.of(chunk).heads[version_of(chunk)];
    bool const holds =
        head.state != NF_SLOT_EMPTY && head.owner == nf_slot_owner(terms.stream, chunk);
    return holds ? &head : nullptr;
  }
};

MiddleSwitch::MiddleSwitch(const MiddleConfig& config) : config_(config) {}

MiddleSwitch::~MiddleSwitch() = default;

// --- receiving ----------------------------------------------------------------------------------

void MiddleSwitch::handle_packet(Nanos now, const Address& from, const Datagram& datagram) {
  discard_sent();
  counters_.packets_rx += 1;
  counters_.bytes_rx += NF_HEADER_BYTES + datagram.payload_bytes;
  Header header;
  if (!is_sound(datagram, &header)) return;
  bool const answers_greeting = header.counter == parent_greeting_ && parent_greeting_ != 0;
  if (header.type == NF_TYPE_COOKIE && answers_greeting) return on_cookie(from, datagram);
  if (from == parent_from_) return from_parent(now, header, datagram);
  from_child(now, from, header, datagram);
}

bool MiddleSwitch::is_sound(const Datagram& datagram, Header* header) {
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
      if (header->type == NF_TYPE_REFUSED && header->counter == parent_greeting_ &&
          parent_greeting_ != 0)
        parent_version_ = header->version;
      return header->type == NF_TYPE_HELLO;
    case PacketError::none:
      return true;
  }
  return false;
}

void MiddleSwitch::from_child(Nanos now, const Address& from, const Header& header,
                              const Datagram& datagram) {
  if (header.type == NF_TYPE_HELLO) return on_hello(from, header, datagram);
  if (header.type == NF_TYPE_JOIN) return on_join(now, from, header, datagram);
  auto const found = streams_.find(header.stream);
  if (found == streams_.end()) {
    counters_.unknown_stream += 1;
    return;
  }
  Group* group = found->second;
  if (!tag_is_valid(datagram.header, group->key)) {
    counters_.bad_tag += 1;
    return;
  }
  if (header.rank >= group->size || !(group->joined >> header.rank & 1)) {
    counters_.unexpected += 1;
    return;
  }
  group->last_heard = now;
  switch (header.type) {
    case NF_TYPE_DATA:
      return on_data(header, datagram, group);
    case NF_TYPE_PROBE:
      counters_.probes_rx += 1;
      return pass_probe(header, group);
    case NF_TYPE_HEARTBEAT:
    case NF_TYPE_LEAVE:
    case NF_TYPE_ABORT:
    case NF_TYPE_ACK:
      return pass_control(from, header, datagram, group);
    default:
      counters_.unexpected += 1;
  }
}

// --- joining ------------------------------------------------------------------------------------

void MiddleSwitch::on_hello(const Address& from, const Header& header, const Datagram& datagram) {
  if (datagram.payload_bytes < kHelloBytes) {
    counters_.malformed += 1;
    return;
  }
  uint8_t body[kControlBytesMax];
  Header reply;
  reply.counter = header.counter;
  if (header.version != NF_VERSION || parent_version_ != NF_VERSION) {
    reply.type = NF_TYPE_REFUSED;
    counters_.refused += 1;
    RefusedBody const refusal{.reason = NF_REFUSAL_VERSION, .version = parent_version_};
    return send_to(from, reply, body, encode(refusal, body), nullptr);
  }
  reply.type = NF_TYPE_COOKIE;
  send_to(from, reply, body,
          encode(CookieBody{siphash(config_.own.cookie_key, from.bytes, from.size)}, body),
          nullptr);
  greet_parent();  // one for one: its cookie may have become a wrong one
}

void MiddleSwitch::greet_parent() {
  uint8_t number[8];
  store_be(number, ++greetings_);
  // Nobody who cannot read the path guesses it.
  parent_greeting_ = static_cast<uint32_t>(siphash(config_.own.cookie_key, number, 8)) | 1;
  Header hello;
  hello.type = NF_TYPE_HELLO;
  hello.counter = parent_greeting_;
  uint8_t const body[kHelloBytes] = {};
  send_up(hello, body, kHelloBytes, nullptr);
}

void MiddleSwitch::on_cookie(const Address& from, const Datagram& datagram) {
  CookieBody body;
  if (datagram.payload == nullptr || !decode(datagram.payload, datagram.payload_bytes, &body))
    return;
  parent_greeting_ = 0;  // answered once
  parent_cookie_ = body.cookie;
  parent_from_ = from;
  parent_version_ = NF_VERSION;
}

void MiddleSwitch::on_join(Nanos now, const Address& from, const Header& header,
                           const Datagram& datagram) {
  JoinBody body;
  bool const readable =
      datagram.payload != nullptr && decode(datagram.payload, datagram.payload_bytes, &body);
  if (!readable || body.size < 2 || body.size > NF_CHILDREN_MAX || header.rank >= body.size ||
      body.payload_bytes_max < kPayloadBytesMin || body.window_max < 1) {
    counters_.malformed += 1;
    return;
  }
  if (body.cookie != siphash(config_.own.cookie_key, from.bytes, from.size)) {
    counters_.bad_cookie += 1;
    return;
  }
  if (!tag_is_valid(datagram.header, body.key)) {
    counters_.bad_tag += 1;
    return;
  }
  Group* group = nullptr;
  RefusedBody refusal;
  refusal.reason = admit(now, body, &group, &refusal.detail);
  bool const taken =
      refusal.reason == 0 && group->settled &&
      (!(group->joined >> header.rank & 1) || group->members[header.rank].nonce != body.nonce);
  if (taken) refusal.reason = NF_REFUSAL_RANK_TAKEN;
  if (refusal.reason != 0) {
    uint8_t bytes[kControlBytesMax];
    Header reply;
    reply.type = NF_TYPE_REFUSED;
    reply.rank = header.rank;
    reply.counter = header.counter;
    counters_.refused += 1;
    report({.kind = SwitchEvent::Kind::member_refused,
            .job = body.job,
            .group = body.group,
            .size = body.size,
            .rank = header.rank,
            .reason = refusal.reason});
    return send_to(from, reply, bytes, encode(refusal, bytes), &body.key);
  }
  group->last_heard = now;
  group->joined |= bit_of(header.rank);
  group->addresses[header.rank] = from;
  Group::Child& child = group->members[header.rank];
  if (child.nonce != body.nonce || is_newer(header.counter, child.last_request))
    child.last_request = header.counter;
  child.nonce = body.nonce;
  child.joined_at = now;
  if (parent_cookie_ == 0) return greet_parent();  // the Join comes again
  pass_join(std::move(body), header, *group);
}

// By another process: one that died while others wait may come again, as at the root.
bool MiddleSwitch::is_taken(Nanos now, uint16_t rank, uint64_t nonce, const Group& group) const {
  const Group::Child& child = group.members[rank];
  if (!(group.joined >> rank & 1)) return group.settled;
  bool const alive = group.settled || now - child.joined_at < config_.own.lease;
  return alive && child.nonce != nonce;
}

uint8_t MiddleSwitch::admit(Nanos now, const JoinBody& body, Group** out, uint16_t* detail) {
  const SwitchConfig& own = config_.own;
  if (body.secret_tag != (own.has_secret ? secret_tag(body, own.secret) : 0)) {
    *detail = own.has_secret;
    return NF_REFUSAL_SECRET;
  }
  GroupName const name{body.job, body.incarnation, body.group};
  auto const found = groups_.find(name);
  if (found != groups_.end()) {
    *out = found->second.get();
    const Key& key = found->second->key;
    if (key.low != body.key.low || key.high != body.key.high) return NF_REFUSAL_KEY_DIFFERS;
    *detail = found->second->size;
    return found->second->size == body.size ? 0 : NF_REFUSAL_SIZE_DIFFERS;
  }
  // Nothing is left of what its workers had sent us, and the root does not begin anew.
  if (body.epoch > 0) return NF_REFUSAL_RANK_TAKEN;
  if (draining_) return NF_REFUSAL_DRAINING;
  if (groups_.size() >= own.groups_max) return NF_REFUSAL_FULL;
  Terms const terms = terms_for(body);
  uint64_t const memory = Slots::memory_bytes(terms.window, body.size, terms.payload_bytes);
  if (memory > own.memory_bytes_max - std::min(own.memory_bytes_max, counters_.memory_bytes))
    return NF_REFUSAL_NO_SLOTS;
  auto group = std::make_unique<Group>();
  group->job = body.job;
  group->id = body.group;
  group->key = body.key;
  group->size = body.size;
  group->members.resize(body.size);
  group->addresses.resize(body.size);
  group->memory_bytes = memory;  // kept free until the root says how much it is
  counters_.memory_bytes += memory;
  counters_.groups_open += 1;
  *out = group.get();
  groups_.emplace(name, std::move(group));
  house_due_ = std::min(house_due_, now + kHousePeriod);
  return 0;
}

Terms MiddleSwitch::terms_for(const JoinBody& body) const {
  return terms_within(config_.own, {body.payload_bytes_max, body.window_max}, body.size);
}

// The same Join in our name: what we can take, the root's cookie, the operator's secret over both.
void MiddleSwitch::pass_join(JoinBody body, const Header& header, const Group& group) {
  Terms const terms = terms_for(body);
  body.cookie = parent_cookie_;
  body.payload_bytes_max = static_cast<uint16_t>(terms.payload_bytes);
  body.window_max = static_cast<uint16_t>(terms.window);
  body.secret_tag = 0;
  if (config_.own.has_secret) body.secret_tag = secret_tag(body, config_.own.secret);
  uint8_t bytes[kControlBytesMax];
  send_up(header, bytes, encode(body, bytes), &group.key);
}

// --- the data path ------------------------------------------------------------------------------

void MiddleSwitch::on_data(const Header& header, const Datagram& datagram, Group* group) {
  counters_.data_rx += 1;
  if (header.elements == 0 ||
      header.elements * dtype_bytes(header.dtype) > group->terms.payload_bytes ||
      !kernel_exists(header.op, header.dtype) || !group->children.whole(header) ||
      header.chunk < group->terms.first_chunk) {
    counters_.malformed += 1;
    return;
  }
  if (group->broken) return pass_probe(header, group);
  Slot& slot = group->slots.of(header.chunk);
  uint32_t const index = group->version_of(header.chunk);
  nf_slot_head* head = &slot.heads[index];
  nf_slot_head* other = &slot.heads[1 - index];
  SlotVersion& version = slot.versions[index];
  uint64_t const owner = nf_slot_owner(group->terms.stream, header.chunk);
  bool const holds = head->state != NF_SLOT_EMPTY && head->owner == owner;
  if (holds && (version.fingerprint != header.fingerprint ||
                version.collective != header.collective || version.op != header.op ||
                version.dtype != header.dtype || version.elements != header.elements)) {
    counters_.malformed += 1;  // ranks disagree: their Heartbeats tell the root
    return;
  }
  bool const first_on_slot = head->state == NF_SLOT_EMPTY && other->state == NF_SLOT_EMPTY;
  if (first_on_slot && header.chunk - group->terms.first_chunk >= group->slots.size()) {
    counters_.early += 1;
    return;
  }
  switch (nf_slot_add(head, other, owner, header.bitmap, header.ranks, header.rank,
                      group->children.ranks(), group->slots.size())) {
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
      group->result_of(header.chunk).here = false;
      [[fallthrough]];
    case NF_VERDICT_ADD:
      if (datagram.payload != nullptr)
        group->slots.add(&slot, index, group->children.index_of(header.rank), datagram.payload);
      if (head->state != NF_SLOT_COMPLETE) return;
      version.counter = header.counter;
      counters_.chunks_completed += 1;
      return send_sum_up(group, header.chunk, 0);
    case NF_VERDICT_DUPLICATE:
    case NF_VERDICT_SERVE:
      counters_.duplicates += 1;
      return pass_probe(header, group);
    case NF_VERDICT_LATE:
      counters_.late += 1;
      return;
    case NF_VERDICT_EARLY:
      counters_.early += 1;
  }
}

// What we have is served. Else the root is asked, and told what we have of the chunk.
void MiddleSwitch::pass_probe(const Header& header, Group* group) {
  const Slot& slot = group->slots.of(header.chunk);
  const nf_slot_head& version = slot.heads[group->version_of(header.chunk)];
  uint64_t const owner = nf_slot_owner(group->terms.stream, header.chunk);
  if (nf_slot_probe(&version, owner, header.rank) == NF_VERDICT_LATE) {
    counters_.late += 1;
    return;
  }
  const nf_slot_head* head = group->head_of(header.chunk);
  uint64_t const added = head == nullptr ? 0 : head->added;
  if (head != nullptr && group->result_of(header.chunk).here) {
    counters_.results_resent += 1;
    return send_result(group, header.chunk, bit_of(header.rank));
  }
  Header question;
  question.stream = header.stream;
  question.chunk = header.chunk;
  question.rank = header.rank;
  question.counter = header.counter;
  question.collective = header.collective;
  bool const lost_below = header.bitmap == group->children.behind(header.rank) &&
                          !(added & header.bitmap) && !group->broken;
  if (lost_below && header.type == NF_TYPE_PROBE) {  // what a switch below us had complete
    question.type = NF_TYPE_HAVE;
    question.flags = NF_FLAG_RESEND;
    question.bitmap = added;
    counters_.haves_tx += 1;
    return send_to(group->addresses[header.rank], question, nullptr, 0, &group->key);
  }
  question.type = NF_TYPE_PROBE;
  question.bitmap = added | (header.type == NF_TYPE_PROBE ? header.bitmap : 0);
  send_up(question, nullptr, 0, &group->key);
}

void MiddleSwitch::on_result(const Header& header, const Datagram& datagram, Group* group) {
  Slot& slot = group->slots.of(header.chunk);
  uint32_t const index = group->version_of(header.chunk);
  const SlotVersion& version = slot.versions[index];
  const nf_slot_head* head = group->head_of(header.chunk);
  Group::Result& result = group->result_of(header.chunk);
  bool const awaited = head != nullptr && head->state == NF_SLOT_COMPLETE && !result.here;
  if (!awaited) {
    counters_.duplicates += 1;
    return;
  }
  if (version.fingerprint != header.fingerprint || version.collective != header.collective ||
      version.op != header.op || version.dtype != header.dtype ||
      version.elements != header.elements || header.bitmap != all_of(group->size)) {
    counters_.unexpected += 1;
    return;
  }
  if (datagram.payload != nullptr)
    std::memcpy(slot.sums[index], datagram.payload, datagram.payload_bytes);
  std::memcpy(result.head, datagram.header, NF_HEADER_BYTES);
  result.here = true;
  send_result(group, header.chunk, group->present());
}

void MiddleSwitch::on_have(const Header& header, Group* group) {
  const nf_slot_head* head = group->head_of(header.chunk);
  bool const sum_is_here = head != nullptr && head->state == NF_SLOT_COMPLETE;
  if ((header.flags & NF_FLAG_RESEND) && sum_is_here && !group->result_of(header.chunk).here)
    send_sum_up(group, header.chunk, NF_FLAG_RESEND);
  Header reply = header;
  reply.flags = 0;
  reply.bitmap |= head == nullptr ? 0 : head->added;
  reply.ranks = static_cast<uint16_t>(std::popcount(reply.bitmap));
  counters_.haves_tx += 1;
  send_to(group->addresses[header.rank], reply, nullptr, 0, &group->key);
}

// --- control ------------------------------------------------------------------------------------

void MiddleSwitch::pass_control(const Address& from, const Header& header, const Datagram& datagram,
                                Group* group) {
  Group::Child& child = group->members[header.rank];
  if (!is_newer(header.counter, child.last_request)) {
    counters_.replayed += 1;
    return;
  }
  child.last_request = header.counter;
  group->addresses[header.rank] = from;  // a fresh tagged packet: reply where it came from
  if (header.type == NF_TYPE_LEAVE) child.leave_request = header.counter;
  pass(datagram, config_.parent);
}

void MiddleSwitch::from_parent(Nanos now, const Header& header, const Datagram& datagram) {
  auto const found = streams_.find(header.stream);
  Group* group = found == streams_.end() ? nullptr : found->second;
  bool const joining = header.type == NF_TYPE_JOINED || header.type == NF_TYPE_REFUSED;
  if (group == nullptr && joining) group = joining_group(header, datagram);
  if (group == nullptr || !tag_is_valid(datagram.header, group->key)) {
    counters_.unknown_stream += group == nullptr;
    counters_.bad_tag += group != nullptr;
    return;
  }
  group->last_heard = now;
  bool const for_one = header.type != NF_TYPE_GONE && header.type != NF_TYPE_MISMATCH &&
                       header.type != NF_TYPE_ABORT && header.type != NF_TYPE_RESULT;
  if (for_one && (header.rank >= group->size || !(group->joined >> header.rank & 1))) {
    counters_.unexpected += 1;
    return;
  }
  switch (header.type) {
    case NF_TYPE_RESULT:
      return on_result(header, datagram, group);
    case NF_TYPE_HAVE:
      return on_have(header, group);
    case NF_TYPE_GONE:
    case NF_TYPE_MISMATCH:
    case NF_TYPE_ABORT:
      return on_breakage(datagram, group);
    case NF_TYPE_JOINED:
      on_joined(datagram, group);
      break;
    case NF_TYPE_REFUSED:
      pass(datagram, group->addresses[header.rank]);
      if (!group->settled) group->joined &= ~bit_of(header.rank);
      return;
    case NF_TYPE_ACK:
      if (header.counter == group->members[header.rank].leave_request)
        group->left |= bit_of(header.rank);
      break;
    case NF_TYPE_VOID:
      break;
    default:
      counters_.unexpected += 1;
      return;
  }
  pass(datagram, group->addresses[header.rank]);
  if (group->present() == 0) house_due_ = now;
}

// Before we know its stream a group is known by its id and the key of its job.
MiddleSwitch::Group* MiddleSwitch::joining_group(const Header& header, const Datagram& datagram) {
  for (auto& [name, group] : groups_)
    if (group->id == header.fingerprint && header.rank < group->size &&
        tag_is_valid(datagram.header, group->key))
      return group.get();
  return nullptr;
}

void MiddleSwitch::on_joined(const Datagram& datagram, Group* group) {
  JoinedBody body;
  if (datagram.payload == nullptr || !decode(datagram.payload, datagram.payload_bytes, &body))
    return;
  if (body.settled && !group->settled) open_slots(body, group);
}

void MiddleSwitch::open_slots(const JoinedBody& body, Group* group) {
  group->settled = true;
  group->terms = body;
  group->children = Children(group->addresses, group->joined);
  group->slots.open(body.window, group->children.count(), body.payload_bytes);
  group->results.resize(2UL * body.window);
  uint64_t const memory =
      Slots::memory_bytes(body.window, group->children.count(), body.payload_bytes);
  counters_.memory_bytes += memory - group->memory_bytes;
  group->memory_bytes = memory;
  streams_.emplace(body.stream, group);
  report({.kind = SwitchEvent::Kind::group_settled,
          .job = group->job,
          .group = group->id,
          .size = group->size,
          .payload_bytes = body.payload_bytes,
          .window = body.window});
}

void MiddleSwitch::on_breakage(const Datagram& datagram, Group* group) {
  Breakage why;
  if (datagram.payload == nullptr || !decode(datagram.payload, datagram.payload_bytes, &why)) {
    counters_.malformed += 1;
    return;
  }
  if (!group->broken)
    report({.kind = SwitchEvent::Kind::group_broken,
            .job = group->job,
            .group = group->id,
            .size = group->size,
            .breakage = why});
  group->broken = true;
  for (uint64_t left = group->children.one_each(group->present()); left != 0; left &= left - 1)
    pass(datagram, group->addresses[static_cast<size_t>(std::countr_zero(left))]);
  if (why.cause == NF_CAUSE_GONE) group->dead |= why.ranks;
}

// Our own end, which the root hears of as that of our children.
void MiddleSwitch::break_all(Nanos now, const Breakage& why) {
  (void)now;
  discard_sent();
  draining_ = true;
  for (auto& [stream, group] : streams_) {
    if (group->broken) continue;
    group->broken = true;
    uint8_t body[kControlBytesMax];
    size_t const bytes = encode(why, body);
    Header header;
    header.type = NF_TYPE_ABORT;
    header.stream = stream;
    for (uint64_t left = group->present(); left != 0; left &= left - 1)
      send_to(group->addresses[static_cast<size_t>(std::countr_zero(left))], header, body, bytes,
              &group->key);
  }
}

// --- ends ---------------------------------------------------------------------------------------

void MiddleSwitch::handle_timeout(Nanos now) {
  if (now < house_due_) return;
  discard_sent();
  for (auto it = groups_.begin(); it != groups_.end();) {
    auto const next = std::next(it);
    const Group& group = *it->second;
    bool const ended = group.settled && group.present() == 0;
    if (ended || now - group.last_heard >= kSilentLeases * config_.own.lease) close(it);
    it = next;
  }
  house_due_ = groups_.empty() ? kNever : now + kHousePeriod;
}

void MiddleSwitch::close(std::map<GroupName, std::unique_ptr<Group>>::iterator entry) {
  Group* group = entry->second.get();
  std::erase_if(outgoing_, [&](const Outgoing& outgoing) { return outgoing.group == group; });
  if (group->settled) streams_.erase(group->terms.stream);
  counters_.memory_bytes -= group->memory_bytes;
  counters_.groups_open -= 1;
  report({.kind = SwitchEvent::Kind::group_closed,
          .job = group->job,
          .group = group->id,
          .size = group->size});
  groups_.erase(entry);
}

// --- sending ------------------------------------------------------------------------------------

void MiddleSwitch::send_sum_up(Group* group, uint64_t chunk, uint8_t flags) {
  const Slot& slot = group->slots.of(chunk);
  uint32_t const index = group->version_of(chunk);
  const nf_slot_head& head = slot.heads[index];
  const SlotVersion& version = slot.versions[index];
  Header header;
  header.type = NF_TYPE_DATA;
  header.flags = flags;
  header.op = version.op;
  header.dtype = version.dtype;
  header.stream = group->terms.stream;
  header.node = config_.own.node;
  header.ranks = static_cast<uint16_t>(head.ranks);
  header.chunk = chunk;
  header.bitmap = head.added;
  header.elements = version.elements;
  header.rank = static_cast<uint16_t>(head.last);
  header.counter = version.counter;
  header.fingerprint = version.fingerprint;
  header.collective = version.collective;
  Outgoing outgoing{.transmit = {}, .to = config_.parent, .group = group};
  Transmit& transmit = outgoing.transmit;
  encode_header(header, transmit.head);
  transmit.head_bytes = NF_HEADER_BYTES;
  transmit.receivers = 1;
  transmit.payload = version.counted ? nullptr : slot.sums[index];
  transmit.payload_bytes = version.bytes();
  seal_packet(transmit.head, transmit.payload, transmit.payload_bytes, &group->key);
  push(std::move(outgoing));
}

void MiddleSwitch::send_result(Group* group, uint64_t chunk, uint64_t receivers) {
  const Slot& slot = group->slots.of(chunk);
  const SlotVersion& version = slot.versions[group->version_of(chunk)];
  Outgoing outgoing{.transmit = {}, .to = {}, .group = group};
  Transmit& transmit = outgoing.transmit;
  std::memcpy(transmit.head, group->result_of(chunk).head, NF_HEADER_BYTES);
  transmit.head_bytes = NF_HEADER_BYTES;
  transmit.addresses = group->addresses.data();
  transmit.receivers = group->children.one_each(receivers);
  transmit.payload = version.counted ? nullptr : slot.sums[group->version_of(chunk)];
  transmit.payload_bytes = version.bytes();
  counters_.results_tx += static_cast<uint64_t>(std::popcount(transmit.receivers));
  push(std::move(outgoing));
}

void MiddleSwitch::send_up(const Header& header, const uint8_t* body, size_t bytes,
                           const Key* key) {
  send_to(config_.parent, header, body, bytes, key);
}

void MiddleSwitch::send_to(const Address& to, Header header, const uint8_t* body, size_t bytes,
                           const Key* key) {
  header.elements = static_cast<uint16_t>(bytes);  // of dtype uint8
  header.node = config_.own.node;
  Outgoing outgoing{.transmit = {}, .to = to};
  Transmit& transmit = outgoing.transmit;
  encode_header(header, transmit.head);
  if (bytes > 0) std::memcpy(transmit.head + NF_HEADER_BYTES, body, bytes);
  transmit.head_bytes = NF_HEADER_BYTES + bytes;
  transmit.receivers = 1;
  seal_packet(transmit.head, transmit.head + NF_HEADER_BYTES, bytes, key);
  push(std::move(outgoing));
}

// A control message as it came: header, tag and all are the same on every hop.
void MiddleSwitch::pass(const Datagram& datagram, const Address& to) {
  if (datagram.payload_bytes > kControlBytesMax) {
    counters_.malformed += 1;
    return;
  }
  Outgoing outgoing{.transmit = {}, .to = to};
  Transmit& transmit = outgoing.transmit;
  std::memcpy(transmit.head, datagram.header, NF_HEADER_BYTES);
  if (datagram.payload != nullptr)
    std::memcpy(transmit.head + NF_HEADER_BYTES, datagram.payload, datagram.payload_bytes);
  transmit.head_bytes = NF_HEADER_BYTES + datagram.payload_bytes;
  transmit.receivers = 1;
  push(std::move(outgoing));
}

void MiddleSwitch::push(Outgoing&& outgoing) {
  auto const copies = static_cast<uint64_t>(std::popcount(outgoing.transmit.receivers));
  if (outgoing_.size() >= kOutgoingMax) {
    counters_.transmit_dropped += copies;
    return;
  }
  counters_.packets_tx += copies;
  counters_.bytes_tx += copies * (outgoing.transmit.head_bytes + outgoing.transmit.payload_bytes);
  outgoing_.push_back(std::move(outgoing));
}

bool MiddleSwitch::poll_transmit(Nanos now, Transmit* out) {
  (void)now;
  if (sent_ == outgoing_.size()) return false;
  const Outgoing& next = outgoing_[sent_++];
  *out = next.transmit;
  if (out->addresses == nullptr) out->addresses = &next.to;
  return true;
}

// What was handed out stays where it is until the next handle_*.
void MiddleSwitch::discard_sent() {
  outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<ptrdiff_t>(sent_));
  sent_ = 0;
}

void MiddleSwitch::report(SwitchEvent&& event) {
  if (events_.size() < kEventsMax) events_.push_back(std::move(event));
}

bool MiddleSwitch::poll_event(SwitchEvent* out) {
  if (events_.empty()) return false;
  *out = std::move(events_.front());
  events_.pop_front();
  return true;
}

}  // namespace netfold
