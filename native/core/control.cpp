#include "core/control.h"

#include <algorithm>

#include "core/bytes.h"

namespace netfold {

namespace {

void write(const Phases& phases, ByteWriter* writer) noexcept {
  std::memcpy(writer->at(), phases.bytes(), Phases::kBytes);
  writer->skip(Phases::kBytes);
}

void read(ByteReader* reader, Phases* phases) noexcept {
  const uint8_t* bytes = reader->take(Phases::kBytes);
  if (bytes != nullptr) std::memcpy(phases->bytes(), bytes, Phases::kBytes);
}

}  // namespace

size_t encode(const CookieBody& body, uint8_t* out) noexcept {
  ByteWriter writer(out);
  writer.put(body.cookie);
  return writer.size();
}

bool decode(const uint8_t* bytes, size_t size, CookieBody* body) noexcept {
  ByteReader reader(bytes, size);
  reader.get(&body->cookie);
  return reader.ok_and_empty();
}

size_t encode(const JoinBody& body, uint8_t* out) noexcept {
  ByteWriter writer(out);
  writer.put(body.cookie);
  writer.put(body.key.low);
  writer.put(body.key.high);
  writer.put(body.incarnation);
  writer.put(body.nonce);
  writer.put(body.group);
  writer.put(body.secret_tag);
  writer.put(body.size);
  writer.put(body.payload_bytes_max);
  writer.put(body.window_max);
  writer.put(body.epoch);
  write(body.phases, &writer);
  size_t const name_bytes = std::min(body.job.size(), kJobNameBytesMax);
  writer.put(static_cast<uint8_t>(name_bytes));
  std::memcpy(writer.at(), body.job.data(), name_bytes);
  writer.skip(name_bytes);
  return writer.size();
}

bool decode(const uint8_t* bytes, size_t size, JoinBody* body) {
  ByteReader reader(bytes, size);
  reader.get(&body->cookie);
  reader.get(&body->key.low);
  reader.get(&body->key.high);
  reader.get(&body->incarnation);
  reader.get(&body->nonce);
  reader.get(&body->group);
  reader.get(&body->secret_tag);
  reader.get(&body->size);
  reader.get(&body->payload_bytes_max);
  reader.get(&body->window_max);
  reader.get(&body->epoch);
  read(&reader, &body->phases);
  uint8_t name_bytes = 0;
  reader.get(&name_bytes);
  const uint8_t* name = reader.take(name_bytes);
  if (name == nullptr || name_bytes > kJobNameBytesMax || !reader.ok_and_empty()) return false;
  body->job.assign(reinterpret_cast<const char*>(name), name_bytes);
  return true;
}

size_t encode(const JoinedBody& body, uint8_t* out) noexcept {
  ByteWriter writer(out);
  writer.put(static_cast<uint16_t>(body.settled));
  writer.put(body.payload_bytes);
  writer.put(body.window);
  writer.put(body.node);
  writer.put(body.stream);
  writer.put(body.epoch);
  writer.put(body.first_chunk);
  writer.put(body.joined);
  write(body.phases, &writer);
  return writer.size();
}

bool decode(const uint8_t* bytes, size_t size, JoinedBody* body) noexcept {
  ByteReader reader(bytes, size);
  uint16_t settled = 0;
  reader.get(&settled);
  reader.get(&body->payload_bytes);
  reader.get(&body->window);
  reader.get(&body->node);
  reader.get(&body->stream);
  reader.get(&body->epoch);
  reader.get(&body->first_chunk);
  reader.get(&body->joined);
  read(&reader, &body->phases);
  body->settled = settled == 1;
  return reader.ok_and_empty() && settled <= 1;
}

size_t encode(const RefusedBody& body, uint8_t* out) noexcept {
  ByteWriter writer(out);
  writer.put(body.reason);
  writer.put(body.version);
  writer.put(body.detail);
  writer.put(uint32_t{0});  // as long as a Hello's body: no reflection
  return writer.size();
}

bool decode(const uint8_t* bytes, size_t size, RefusedBody* body) noexcept {
  ByteReader reader(bytes, size);
  uint32_t reserved = 0;
  reader.get(&body->reason);
  reader.get(&body->version);
  reader.get(&body->detail);
  reader.get(&reserved);
  return reader.ok_and_empty();
}

size_t encode(const Breakage& body, uint8_t* out) noexcept {
  ByteWriter writer(out);
  writer.put(body.cause);
  writer.put(body.ranks);
  writer.put(body.added);
  writer.put(body.chunk);
  writer.put(body.epoch);
  writer.put(body.collective);
  writer.put(body.rank_a);
  writer.put(body.rank_b);
  writer.put(body.collective_a);
  writer.put(body.collective_b);
  writer.put(body.fingerprint_a);
  writer.put(body.fingerprint_b);
  return writer.size();
}

bool decode(const uint8_t* bytes, size_t size, Breakage* body) noexcept {
  ByteReader reader(bytes, size);
  reader.get(&body->cause);
  reader.get(&body->ranks);
  reader.get(&body->added);
  reader.get(&body->chunk);
  reader.get(&body->epoch);
  reader.get(&body->collective);
  reader.get(&body->rank_a);
  reader.get(&body->rank_b);
  reader.get(&body->collective_a);
  reader.get(&body->collective_b);
  reader.get(&body->fingerprint_a);
  reader.get(&body->fingerprint_b);
  return reader.ok_and_empty();
}

uint64_t secret_tag(const JoinBody& body, const Key& secret) noexcept {
  JoinBody unsigned_body = body;
  unsigned_body.secret_tag = 0;
  uint8_t bytes[kControlBytesMax];
  return siphash(secret, bytes, encode(unsigned_body, bytes));
}

}  // namespace netfold
