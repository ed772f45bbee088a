#include "core/fixed_point.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace netfold {
namespace {

constexpr uint32_t kMagnitude = 0x7FFF'FFFF;
constexpr uint32_t kInfinity = 0x7F80'0000;
constexpr uint32_t kNan = 0x7FC0'0000;
constexpr uint32_t kNegative = 0x8000'0000;

template <class Word>
Word load(const uint8_t* bytes, size_t index) noexcept {
  Word word;
  std::memcpy(&word, bytes + index * sizeof word, sizeof word);
  return word;
}

template <class Word>
void store(uint8_t* bytes, size_t index, Word word) noexcept {
  std::memcpy(bytes + index * sizeof word, &word, sizeof word);
}

// 2^power, for powers of normal doubles.
double power_of_two(int power) noexcept {
  return std::bit_cast<double>(static_cast<uint64_t>(power + 1023) << 52);
}

}  // namespace

BlockHead block_head(const uint8_t* values, size_t elements) noexcept {
  uint32_t largest = 0;  // of the finite magnitudes
  uint32_t special = 0;
  for (size_t i = 0; i < elements; ++i) {
    const uint32_t magnitude = load<uint32_t>(values, i) & kMagnitude;
    const bool finite = magnitude < kInfinity;
    largest = std::max(largest, finite ? magnitude : 0);
    special |= finite ? 0U : 1U;
  }
  // A power of two is its own bound, anything above it needs the next one; denormals have -126.
  const uint32_t field = largest >> 23;
  const uint32_t beyond = (largest & 0x007F'FFFF) != 0 ? 1 : 0;
  const uint32_t exponent = field == 0 ? 0 : field - 1 + beyond;
  return {static_cast<uint8_t>(exponent), static_cast<uint8_t>(special)};
}

int fixed_scale(uint8_t exponent, uint32_t ranks) noexcept {
  return 30 - std::bit_width(ranks - 1) - (exponent - NF_FIXED_EXPONENT_BIAS);
}

void quantise(const uint8_t* values, size_t elements, int scale, uint8_t* integers) noexcept {
  const double factor = power_of_two(scale);
  // Adding it leaves no bits for fractions, so the sum is rounded to an integer as every IEEE
  // addition is; the low half of its bits is that integer.
  constexpr double kRounder = 0x1.8p52;
  for (size_t i = 0; i < elements; ++i) {
    const auto bits = load<uint32_t>(values, i);
    const uint32_t finite = (bits & kMagnitude) < kInfinity ? bits : 0;
    const double rounded = std::bit_cast<float>(finite) * factor + kRounder;
    store(integers, i, static_cast<uint32_t>(std::bit_cast<uint64_t>(rounded)));
  }
}

void dequantise(const uint8_t* integers, size_t elements, int scale, uint32_t divisor,
                uint8_t* values) noexcept {
  const double factor = power_of_two(-scale);
  const double by = divisor;
  if (divisor == 1) {  // a division costs more than the rest
    for (size_t i = 0; i < elements; ++i)
      store(values, i, static_cast<float>(load<int32_t>(integers, i) * factor));
    return;
  }
  for (size_t i = 0; i < elements; ++i)
    store(values, i, static_cast<float>(load<int32_t>(integers, i) * factor / by));
}

void classify(const uint8_t* values, size_t elements, uint8_t* classes) noexcept {
  std::memset(classes, 0, NF_FIXED_CLASS_BYTES);
  for (size_t i = 0; i < elements; ++i) {
    const auto bits = load<uint32_t>(values, i);
    const uint32_t magnitude = bits & kMagnitude;
    if (magnitude < kInfinity) continue;
    const unsigned infinity = bits == magnitude ? 1 : 2;
    const unsigned found = magnitude > kInfinity ? 3 : infinity;
    classes[i / 4] = static_cast<uint8_t>(classes[i / 4] | found << (i % 4 * 2));
  }
}

void apply_classes(const uint8_t* classes, size_t elements, uint8_t* values) noexcept {
  constexpr uint32_t kValues[] = {0, kInfinity, kInfinity | kNegative, kNan};
  for (size_t i = 0; i < elements; ++i) {
    const unsigned found = classes[i / 4] >> (i % 4 * 2) & 3;
    if (found != 0) store(values, i, kValues[found]);
  }
}

}  // namespace netfold
