#include "core/crc32c.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#define NF_CRC32C_X86 1
#include <immintrin.h>
#endif

namespace netfold {
namespace {

static_assert(std::endian::native == std::endian::little, "netfold runs on little-endian hosts");

constexpr uint32_t kPolynomial = 0x82F63B78;  // bit-reversed: bit 31 is x^0

// value * x modulo the polynomial
constexpr uint32_t times_x(uint32_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
}

uint64_t load64(const uint8_t* bytes) noexcept {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// kSlices[k][b]: the remainder of byte b with k zero bytes behind it.
constexpr auto kSlices = [] {
  std::array<std::array<uint32_t, 256>, 8> slices{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (auto& slice : slices) {
      for (int bit = 0; bit < 8; ++bit) remainder = times_x(remainder);
      slice[byte] = remainder;
    }
  }
  return slices;
}();

#if NF_CRC32C_X86

// The CRC instruction takes three cycles but one can start in each, so three streams of equal
// length run side by side. A stream's remainder is then moved over the bytes behind it: one
// carry-less product with x^(64 * words - 33), whose 64-bit value the CRC instruction reduces
// (it multiplies by x^32; the reflected product is short of one x).
constexpr size_t kStreams = 3;
constexpr size_t kStreamWords = 128;  // at most, in one pass

// kAdvance[words]: x^(64 * words - 33) modulo the polynomial
constexpr auto kAdvance = [] {
  std::array<uint32_t, 2 * kStreamWords + 1> advance{};
  uint32_t power = 0x80000000;  // x^0
  for (int bit = 0; bit < 31; ++bit) power = times_x(power);
  for (size_t words = 1; words < advance.size(); ++words) {
    advance[words] = power;
    for (int bit = 0; bit < 64; ++bit) power = times_x(power);
  }
  return advance;
}();

__attribute__((target("sse4.2,pclmul"))) inline uint64_t advance(uint64_t crc,
                                                                 size_t words) noexcept {
  const __m128i product =
      _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(crc)),
                           _mm_cvtsi64_si128(static_cast<int64_t>(kAdvance[words])), 0);
  return static_cast<uint64_t>(_mm_cvtsi128_si64(product));
}

__attribute__((target("sse4.2,pclmul"))) uint32_t crc32c_x86(const uint8_t* bytes, size_t size,
                                                             uint32_t previous) noexcept {
  uint64_t crc = ~previous;
  while (size >= kStreams * 8 * 4) {
    const size_t most = size / (kStreams * 8);
    const size_t words = most < kStreamWords ? most : kStreamWords;
    const uint8_t* const second = bytes + 8 * words;
    const uint8_t* const third = second + 8 * words;
    const size_t last = 8 * (words - 1);
    uint64_t crc2 = 0;
    uint64_t crc3 = 0;
#pragma GCC unroll 4
    for (size_t at = 0; at < last; at += 8) {
      crc = _mm_crc32_u64(crc, load64(bytes + at));
      crc2 = _mm_crc32_u64(crc2, load64(second + at));
      crc3 = _mm_crc32_u64(crc3, load64(third + at));
    }
    crc = _mm_crc32_u64(crc, load64(bytes + last));
    crc2 = _mm_crc32_u64(crc2, load64(second + last));
    // The last word's reduction serves the two moved remainders as well.
    crc =
        _mm_crc32_u64(crc3, load64(third + last) ^ advance(crc, 2 * words) ^ advance(crc2, words));
    bytes += kStreams * 8 * words;
    size -= kStreams * 8 * words;
  }
  for (; size >= 8; bytes += 8, size -= 8) crc = _mm_crc32_u64(crc, load64(bytes));
  auto narrow = static_cast<uint32_t>(crc);
  for (; size > 0; ++bytes, --size) narrow = _mm_crc32_u8(narrow, *bytes);
  return ~narrow;
}

#endif

using Function = uint32_t (*)(const uint8_t*, size_t, uint32_t) noexcept;

uint32_t choose(const uint8_t* bytes, size_t size, uint32_t previous) noexcept;

std::atomic<Function> implementation{choose};

// Stands in for the implementation until the first call, so that no static initialiser must run.
uint32_t choose(const uint8_t* bytes, size_t size, uint32_t previous) noexcept {
  Function best = crc32c_portable;
#if NF_CRC32C_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) best = crc32c_x86;
#endif
  implementation.store(best, std::memory_order_relaxed);
  return best(bytes, size, previous);
}

}  // namespace

uint32_t crc32c(const uint8_t* bytes, size_t size, uint32_t previous) noexcept {
  return implementation.load(std::memory_order_relaxed)(bytes, size, previous);
}

uint32_t crc32c_portable(const uint8_t* bytes, size_t size, uint32_t previous) noexcept {
  uint32_t crc = ~previous;
  for (; size >= 8; bytes += 8, size -= 8) {
    const uint64_t word = load64(bytes) ^ crc;
    crc = kSlices[7][word & 0xFF] ^ kSlices[6][(word >> 8) & 0xFF] ^
          kSlices[5][(word >> 16) & 0xFF] ^ kSlices[4][(word >> 24) & 0xFF] ^
          kSlices[3][(word >> 32) & 0xFF] ^ kSlices[2][(word >> 40) & 0xFF] ^
          kSlices[1][(word >> 48) & 0xFF] ^ kSlices[0][word >> 56];
  }
  for (; size > 0; ++bytes, --size) crc = (crc >> 8) ^ kSlices[0][(crc ^ *bytes) & 0xFF];
  return ~crc;
}

}  // namespace netfold
