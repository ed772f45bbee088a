// The simulator's random numbers: the same on every machine, so nothing of <random>.
#pragma once

#include <bit>
#include <cstdint>

namespace netfold {

// A bijection of 64 bits that looks random (the finalizer of splitmix64).
[[nodiscard]] constexpr uint64_t mix64(uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// An independent seed for each purpose, so that drawing for one does not move another.
[[nodiscard]] constexpr uint64_t derive_seed(uint64_t seed, uint64_t purpose) noexcept {
  return mix64(mix64(seed + 0x9E3779B97F4A7C15) ^ (purpose * 0xD1B54A32D192ED03));
}

// xoshiro256**
class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) {
      seed += 0x9E3779B97F4A7C15;
      word = mix64(seed);
    }
  }

  uint64_t next() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // 0 to bound - 1.
  uint64_t below(uint64_t bound) { return next() % bound; }

  // low to high, both included.
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
  }

  bool chance(uint32_t per_million) { return per_million > 0 && below(1'000'000) < per_million; }

  // low to high, every power of two between them equally likely. low >= 1.
  uint64_t octaves(uint64_t low, uint64_t high) {
    const int bits = static_cast<int>(between(std::bit_width(low), std::bit_width(high)));
    const uint64_t drawn = (uint64_t{1} << (bits - 1)) + below(uint64_t{1} << (bits - 1));
    return drawn < low ? low : drawn > high ? high : drawn;
  }

 private:
  uint64_t state_[4];
};

}  // namespace netfold
