#include "core/crc32c.h"

#include <cstring>
#include <random>
#include <vector>

#include "tests/check.h"

using netfold::crc32c;
using netfold::crc32c_portable;

namespace {

// Bit by bit, from the definition.
uint32_t crc32c_naive(const uint8_t* bytes, size_t size, uint32_t previous) {
  uint32_t crc = ~previous;
  for (size_t i = 0; i < size; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78 : 0);
  }
  return ~crc;
}

void check_known(const std::vector<uint8_t>& bytes, uint32_t expected) {
  CHECK(crc32c(bytes.data(), bytes.size()) == expected);
  CHECK(crc32c_portable(bytes.data(), bytes.size()) == expected);
  CHECK(crc32c_naive(bytes.data(), bytes.size(), 0) == expected);
}

}  // namespace

int main() {
  check_known({}, 0);
  check_known({'1', '2', '3', '4', '5', '6', '7', '8', '9'}, 0xE3069283);
  // RFC 3720, B.4
  check_known(std::vector<uint8_t>(32, 0x00), 0x8A9136AA);
  check_known(std::vector<uint8_t>(32, 0xFF), 0x62A8AB43);
  std::vector<uint8_t> rising(32);
  for (size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<uint8_t>(i);
  check_known(rising, 0x46DD794E);

  std::mt19937_64 random{20240229};
  std::vector<uint8_t> bytes(20000);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(random());

  // every length up to one pass of the interleaved streams and beyond, at changing offsets
  for (size_t size = 0; size <= 3200; ++size) {
    const uint8_t* const at = bytes.data() + random() % 64;
    const auto previous = static_cast<uint32_t>(random());
    const uint32_t expected = crc32c_naive(at, size, previous);
    CHECK(crc32c(at, size, previous) == expected);
    CHECK(crc32c_portable(at, size, previous) == expected);
  }

  for (int round = 0; round < 2000; ++round) {
    const size_t offset = random() % 4096;
    const size_t size = random() % (bytes.size() - offset);
    const size_t first = size == 0 ? 0 : random() % size;
    const uint8_t* const at = bytes.data() + offset;
    const uint32_t expected = crc32c_portable(at, size);
    CHECK(crc32c(at, size) == expected);
    CHECK(crc32c(at + first, size - first, crc32c(at, first)) == expected);
    CHECK(crc32c_portable(at + first, size - first, crc32c_portable(at, first)) == expected);
  }
  return 0;
}
