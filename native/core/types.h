// Words every engine shares: virtual time, opaque addresses, what to transmit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/wire_constants.h"

namespace netfold {

// Time is always an argument: nanoseconds of any clock that never goes back.
using Nanos = int64_t;
inline constexpr Nanos kNever = std::numeric_limits<Nanos>::max();
inline constexpr Nanos kMicrosecond = 1'000;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;

// Bitmaps of a group's members, by rank.
constexpr uint64_t bit_of(uint32_t rank) {
  return uint64_t{1} << rank;
}

constexpr uint64_t all_of(uint32_t size) {
  return size == 64 ? ~uint64_t{0} : bit_of(size) - 1;
}

// Where a packet came from: bytes only the driver understands (a socket address and the local
// address it arrived at). Engines store, compare and hand them back.
struct Address {
  static constexpr size_t kBytesMax = 48;
  uint8_t bytes[kBytesMax] = {};
  uint8_t size = 0;

  friend bool operator==(const Address& a, const Address& b) {
    return a.size == b.size && std::memcmp(a.bytes, b.bytes, a.size) == 0;
  }
};

// A datagram as it arrived. `payload == nullptr` with `payload_bytes > 0` is a packet that a
// simulator only counts: no CRC is checked and no arithmetic is done for it.
struct Datagram {
  const uint8_t* header;  // NF_HEADER_BYTES bytes
  const uint8_t* payload;
  size_t payload_bytes;
};

// What one queued packet costs a receive buffer: the kernel charges the memory, not the bytes.
constexpr uint64_t buffer_cost(uint64_t payload_bytes) {
  return 2 * (payload_bytes + NF_HEADER_BYTES) + 1024;
}

inline constexpr size_t kControlBytesMax = 320;

// One packet for one or many receivers. It points into the engine (addresses, payload) and stays
// valid until the next handle_* or command; the driver expands it to the receivers.
struct Transmit {
  const Address* addresses = nullptr;  // bit r of `receivers` means addresses[r]; null: the peer
  uint64_t receivers = 0;
  const uint8_t* payload = nullptr;  // after head; slot memory or the user's tensor
  size_t payload_bytes = 0;
  size_t head_bytes = 0;  // header, and the whole body of a control message
  uint8_t head[NF_HEADER_BYTES + kControlBytesMax];
};

}  // namespace netfold
