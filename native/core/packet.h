// The packet header as a struct, its bytes, and what makes a packet trustworthy (docs/protocol.md).
#pragma once

#include "core/siphash.h"
#include "core/types.h"

namespace netfold {

struct Header {
  uint8_t version = NF_VERSION;
  uint8_t type = 0;
  uint8_t flags = 0;
  uint8_t op = 0;
  uint8_t dtype = 0;
  uint8_t exponent = 0;
  uint32_t stream = 0;
  uint16_t node = 0;
  uint16_t ranks = 0;
  uint64_t chunk = 0;
  uint64_t bitmap = 0;
  uint16_t elements = 0;
  uint16_t rank = 0;
  uint32_t counter = 0;
  uint64_t fingerprint = 0;
  uint32_t collective = 0;
  uint32_t crc = 0;
  uint64_t tag = 0;
};

enum class PacketError : uint8_t { none, foreign, version, malformed, crc };

// Bytes of one element, 0 for a code that is no dtype.
[[nodiscard]] size_t dtype_bytes(uint8_t dtype) noexcept;

// Writes the header's NF_HEADER_BYTES; the fields crc and tag as they are.
void encode_header(const Header& header, uint8_t* bytes) noexcept;

// Reads and validates everything that needs no key: magic, version, type, sizes, CRC.
// The header is filled as far as it could be read (type and counter even of another version).
[[nodiscard]] PacketError decode_packet(const Datagram& datagram, Header* header) noexcept;

// Computes the CRC over header and payload and, with a key, the tag; writes both into `bytes`.
void seal_packet(uint8_t* bytes, const uint8_t* payload, size_t payload_bytes,
                 const Key* key) noexcept;

[[nodiscard]] bool tag_is_valid(const uint8_t* header, const Key& key) noexcept;

// What a rank believes a collective to be, packed so that two that differ can be shown.
struct Fingerprint {
  uint8_t kind = 0;
  uint8_t op = 0;
  uint8_t dtype = 0;
  uint8_t mode = 0;
  uint64_t elements = 0;  // below 2^48
};

[[nodiscard]] constexpr uint64_t pack_fingerprint(const Fingerprint& f) noexcept {
  return (uint64_t{f.kind} & 15) << 60 | (uint64_t{f.op} & 15) << 56 |
         (uint64_t{f.dtype} & 15) << 52 | (uint64_t{f.mode} & 15) << 48 |
         (f.elements & 0xFFFF'FFFF'FFFF);
}

[[nodiscard]] constexpr Fingerprint unpack_fingerprint(uint64_t bits) noexcept {
  return {static_cast<uint8_t>(bits >> 60 & 15), static_cast<uint8_t>(bits >> 56 & 15),
          static_cast<uint8_t>(bits >> 52 & 15), static_cast<uint8_t>(bits >> 48 & 15),
          bits & 0xFFFF'FFFF'FFFF};
}

}  // namespace netfold
