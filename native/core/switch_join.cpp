// How workers come to a switch: cookie, Join, admission, and what a complete group settles on.
#include <algorithm>

#include "core/switch_state.h"

namespace netfold {
namespace {

constexpr uint16_t kPayloadBytesMin = 8;
constexpr uint16_t kWindowWanted = 8;  // the chunk shrinks before the window falls under it

}  // namespace

Terms terms_within(const SwitchConfig& config, Terms wanted, uint64_t senders) {
  uint64_t payload = std::min<uint64_t>(wanted.payload_bytes, config.payload_bytes_max) & ~7U;
  // Half of the buffer for one group, so that a second one beside it fits as well.
  uint64_t const credit = config.receive_buffer_bytes / 2 / senders;
  while (payload > 64 && credit / buffer_cost(payload) < kWindowWanted) payload = payload / 2 & ~7U;
  uint64_t const window =
      std::min({wanted.window, uint64_t{config.window_max}, uint64_t{NF_WINDOW_MAX}});
  return {payload, std::clamp<uint64_t>(credit / buffer_cost(payload), 1, window)};
}

void Switch::on_untagged(const Address& from, const Header& header, const Datagram& datagram) {
  if (datagram.payload_bytes < kHelloBytes) {
    counters_.malformed += 1;
    return;
  }
  uint8_t body[kControlBytesMax];
  Header reply;
  reply.counter = header.counter;
  if (header.version != NF_VERSION) {
    reply.type = NF_TYPE_REFUSED;
    counters_.refused += 1;
    return send_to(from, reply, body, encode(RefusedBody{.reason = NF_REFUSAL_VERSION}, body),
                   nullptr);
  }
  reply.type = NF_TYPE_COOKIE;
  send_to(from, reply, body, encode(CookieBody{cookie_for(from)}, body), nullptr);
}

// Proves that who sends can be reached at `from`, without a byte of state.
uint64_t Switch::cookie_for(const Address& from) const {
  return siphash(config_.cookie_key, from.bytes, from.size);
}

void Switch::on_join(Nanos now, const Address& from, const Header& header,
                     const Datagram& datagram) {
  JoinBody body;
  bool const readable =
      datagram.payload != nullptr && decode(datagram.payload, datagram.payload_bytes, &body);
  if (!readable || body.size < 2 || body.size > NF_CHILDREN_MAX || header.rank >= body.size ||
      body.payload_bytes_max < kPayloadBytesMin || body.window_max < 1) {
    counters_.malformed += 1;
    return;
  }
  if (body.cookie != cookie_for(from)) {
    counters_.bad_cookie += 1;
    return;
  }
  if (!tag_is_valid(datagram.header, body.key)) {
    counters_.bad_tag += 1;
    return;
  }
  Group* group = nullptr;
  RefusedBody refusal;
  refusal.reason = admit(now, from, header, body, &group, &refusal.detail);
  if (refusal.reason != 0) {
    report({.kind = SwitchEvent::Kind::member_refused,
            .job = body.job,
            .group = body.group,
            .size = body.size,
            .rank = header.rank,
            .reason = refusal.reason});
    return refuse(from, header.rank, header.counter, body.group, refusal, body.key);
  }
  if (group->broken) return announce(group, bit_of(header.rank));
  if (!group->settled && group->joined == group->target())
    settle(now, group);
  else
    send_joined(group, header.rank);
}

void Switch::refuse(const Address& to, uint16_t rank, uint32_t request, uint64_t group,
                    const RefusedBody& refusal, const Key& key) {
  uint8_t body[kControlBytesMax];
  Header reply;
  reply.fingerprint = group;
  reply.type = NF_TYPE_REFUSED;
  reply.rank = rank;
  reply.counter = request;
  counters_.refused += 1;
  send_to(to, reply, body, encode(refusal, body), &key);
}

uint8_t Switch::admit(Nanos now, const Address& from, const Header& header, const JoinBody& body,
                      Group** out, uint16_t* detail) {
  // Who has a secret counts on it to keep others out, so a switch without one will not do.
  if (body.secret_tag != (config_.has_secret ? secret_tag(body, config_.secret) : 0)) {
    *detail = config_.has_secret;
    return NF_REFUSAL_SECRET;
  }
  uint8_t refusal = 0;
  Group* group = find_or_open_group(now, body, &refusal);
  if (group == nullptr) return refusal;
  if (group->refusal != 0) return group->refusal;
  if (group->size != body.size) {
    *detail = group->size;
    return NF_REFUSAL_SIZE_DIFFERS;
  }
  if (body.epoch > 0 && group->epoch == 1 && !group->settled) group->joined = 0;
  // Where members come again, who has not been there before is another process.
  if (body.epoch == 0 && group->epoch > 1) return NF_REFUSAL_RANK_TAKEN;
  Member& member = group->members[header.rank];
  uint64_t const bit = bit_of(header.rank);
  if ((group->joined & bit) && member.nonce != body.nonce) return NF_REFUSAL_RANK_TAKEN;
  bool const is_new = !(group->joined & bit);
  if (is_new && (group->settled || group->closed)) return NF_REFUSAL_RANK_TAKEN;
  if (is_new) {
    member = {.nonce = body.nonce,
              .last_request = header.counter,
              .watermark = body.epoch > 0 ? header.chunk : 0,
              .payload_bytes_max = body.payload_bytes_max,
              .window_max = body.window_max,
              .came_again = body.epoch > 0,
              .phases = body.phases};
    group->epoch = std::max(group->epoch, body.epoch + 1);
    group->joined |= bit;
  } else if (static_cast<int32_t>(header.counter - member.last_request) > 0) {
    member.last_request = header.counter;
  }
  group->addresses[header.rank] = from;
  member.last_heard = now;
  *out = group;
  return 0;
}

Switch::Group* Switch::find_or_open_group(Nanos now, const JoinBody& body, uint8_t* refusal) {
  auto const name = std::pair(body.job, body.incarnation);
  auto job = jobs_.find(name);
  if (job != jobs_.end()) {
    // The first Join of an incarnation fixed the key.
    if (job->second->key.low != body.key.low || job->second->key.high != body.key.high) {
      *refusal = NF_REFUSAL_KEY_DIFFERS;
      return nullptr;
    }
    auto const group = job->second->groups.find(body.group);
    if (group != job->second->groups.end()) return group->second.get();
  }
  if (draining_) {
    *refusal = NF_REFUSAL_DRAINING;
    return nullptr;
  }
  bool const full = streams_.size() >= config_.groups_max ||
                    (job == jobs_.end() && jobs_.size() >= config_.jobs_max);
  if (full && !evict_tombstone()) {
    *refusal = NF_REFUSAL_FULL;
    return nullptr;
  }
  job = jobs_.try_emplace(name).first;
  if (job->second == nullptr)
    job->second = std::make_unique<Job>(
        Job{.name = body.job, .incarnation = body.incarnation, .key = body.key, .groups = {}});
  auto group = std::make_unique<Group>();
  group->job = job->second.get();
  group->id = body.group;
  group->size = body.size;
  group->opened_at = now;
  group->members.resize(body.size);
  group->addresses.resize(body.size);
  while (next_stream_ == 0 || streams_.contains(next_stream_)) next_stream_ += 1;
  group->stream = next_stream_++;
  Group* raw = group.get();
  streams_.emplace(raw->stream, raw);
  job->second->groups.emplace(body.group, std::move(group));
  counters_.groups_open += 1;
  house_due_ = std::min(house_due_, now + kHousePeriod);
  return raw;
}

// Where members come again each slot begins with the chunk that the last of them waits for.
void Switch::begin_where_members_are(Group* group) const {
  group->first_chunk = config_.first_chunk;
  const Member* any = nullptr;
  for (const Member& member : group->members) {
    if (!member.came_again) continue;
    if (any == nullptr) {
      group->phases = member.phases;
      group->first_chunk = member.watermark;
    }
    any = &member;
    group->first_chunk = std::min(group->first_chunk, member.watermark);
    for (size_t slot = 0; slot < NF_WINDOW_MAX; ++slot)  // at most one apart
      if (((member.phases.of(slot) + 1) & 3) == group->phases.of(slot))
        group->phases.set(slot, member.phases.of(slot));
  }
}

// All members are here: agrees chunk bytes and window, takes the memory, tells everybody.
void Switch::settle(Nanos now, Group* group) {
  Terms wanted{config_.payload_bytes_max, config_.window_max};
  for (const Member& member : group->members) {
    if (member.window_max == 0) continue;  // did not come again
    wanted.payload_bytes = std::min<uint64_t>(wanted.payload_bytes, member.payload_bytes_max);
    wanted.window = std::min<uint64_t>(wanted.window, member.window_max);
  }
  auto [payload, window] = terms_within(config_, wanted, group->size);
  group->children = Children(group->addresses, group->joined);
  auto const memory = [&] { return Slots::memory_bytes(window, group->children.count(), payload); };
  uint64_t const available =
      config_.memory_bytes_max - std::min(config_.memory_bytes_max, counters_.memory_bytes);
  while (window > kWindowWanted && memory() > available) window /= 2;
  if (memory() > available) {
    group->refusal = NF_REFUSAL_NO_SLOTS;
    report({.kind = SwitchEvent::Kind::member_refused,
            .job = group->job->name,
            .group = group->id,
            .size = group->size,
            .reason = group->refusal});
    for (uint16_t rank = 0; rank < group->size; ++rank)
      if (group->joined >> rank & 1)
        refuse(group->addresses[rank], rank, group->members[rank].last_request, group->id,
               {.reason = NF_REFUSAL_NO_SLOTS}, group->job->key);
    group->ended_at = now;
    return close_group(group);
  }
  group->settled = true;
  begin_where_members_are(group);
  group->payload_bytes = static_cast<uint16_t>(payload);
  group->window = static_cast<uint16_t>(window);
  group->memory_bytes = memory();
  counters_.memory_bytes += group->memory_bytes;
  group->slots.open(window, group->children.count(), payload);
  for (uint16_t rank = 0; rank < group->size; ++rank) {
    group->members[rank].last_heard = now;
    if (group->joined >> rank & 1) send_joined(group, rank);
  }
  report({.kind = SwitchEvent::Kind::group_settled,
          .job = group->job->name,
          .group = group->id,
          .size = group->size,
          .payload_bytes = group->payload_bytes,
          .window = group->window});
}

}  // namespace netfold
