// SipHash-2-4 (Aumasson and Bernstein): 128-bit key, 64-bit result. It authenticates packets.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace netfold {

static_assert(std::endian::native == std::endian::little, "netfold runs on little-endian hosts");

// The 16 key bytes as two little-endian words: `low` holds bytes 0 to 7.
struct Key {
  uint64_t low;
  uint64_t high;
};

namespace siphash_detail {

struct State {
  uint64_t v0, v1, v2, v3;

  void round() noexcept {
    v0 += v1;
    v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1;
    v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  }

  void absorb(uint64_t word) noexcept {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }
};

}  // namespace siphash_detail

[[nodiscard]] inline uint64_t siphash(const Key& key, const uint8_t* bytes, size_t size) noexcept {
  siphash_detail::State state{key.low ^ 0x736F6D6570736575, key.high ^ 0x646F72616E646F6D,
                              key.low ^ 0x6C7967656E657261, key.high ^ 0x7465646279746573};
  const size_t whole = size & ~size_t{7};
  for (size_t at = 0; at < whole; at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + at, sizeof word);
    state.absorb(word);
  }
  uint64_t last = uint64_t{size} << 56;  // the length modulo 256 above the remaining bytes
  for (size_t at = whole; at < size; ++at) {
    last |= uint64_t{bytes[at]} << (8 * (at - whole));
  }
  state.absorb(last);
  state.v2 ^= 0xFF;
  state.round();
  state.round();
  state.round();
  state.round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

}  // namespace netfold
