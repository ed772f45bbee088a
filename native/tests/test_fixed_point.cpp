// fixed32 against the definitions and the bounds of docs/numbers.md.
#include "core/fixed_point.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/check.h"

namespace {

using netfold::BlockHead;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
constexpr float kLargest = std::numeric_limits<float>::max();

std::mt19937_64 generator{20261};

const uint8_t* bytes_of(const std::vector<float>& values) {
  return reinterpret_cast<const uint8_t*>(values.data());
}

BlockHead head_of(const std::vector<float>& values) {
  return netfold::block_head(bytes_of(values), values.size());
}

int exponent_of(const std::vector<float>& values) {
  return head_of(values).exponent - NF_FIXED_EXPONENT_BIAS;
}

void test_heads() {
  CHECK(exponent_of({}) == -126);
  CHECK(exponent_of({0.0F, -0.0F}) == -126);
  CHECK(exponent_of({1.0F}) == 0);
  CHECK(exponent_of({-1.0F, 0.5F}) == 0);
  CHECK(exponent_of({std::nextafter(1.0F, 2.0F)}) == 1);
  CHECK(exponent_of({kDenormal}) == -126);
  CHECK(exponent_of({std::ldexp(1.0F, -126)}) == -126);
  CHECK(exponent_of({std::ldexp(1.5F, -126)}) == -125);
  CHECK(exponent_of({kLargest}) == 128);
  CHECK(exponent_of({std::ldexp(1.0F, 127)}) == 127);
  CHECK(exponent_of({kNan, kInfinity, 0.75F}) == 0);  // of the finite ones
  CHECK(head_of({kNan}).has_special == 1);
  CHECK(head_of({-kInfinity, 1.0F}).has_special == 1);
  CHECK(head_of({kLargest}).has_special == 0);
  for (int round = 0; round < 100'000; ++round) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(generator()));
    if (!std::isfinite(x)) continue;
    const int exponent = exponent_of({x});
    CHECK(std::fabs(x) <= std::ldexp(1.0, exponent));
    CHECK(exponent == -126 || std::fabs(x) > std::ldexp(1.0, exponent - 1));
  }
}

// What `ranks` ranks get, each with its own block.
std::vector<float> reduce(const std::vector<std::vector<float>>& blocks, bool average,
                          int* exponent) {
  const auto ranks = static_cast<uint32_t>(blocks.size());
  const size_t elements = blocks[0].size();
  uint8_t agreed = 0;
  for (const auto& block : blocks) agreed = std::max(agreed, head_of(block).exponent);
  *exponent = agreed - NF_FIXED_EXPONENT_BIAS;
  const int scale = netfold::fixed_scale(agreed, ranks);
  std::vector<int32_t> sum(elements);
  std::vector<int32_t> mine(elements);
  for (const auto& block : blocks) {
    netfold::quantise(bytes_of(block), elements, scale, reinterpret_cast<uint8_t*>(mine.data()));
    for (size_t i = 0; i < elements; ++i) {
      const int64_t wide = int64_t{sum[i]} + mine[i];
      CHECK(wide >= -(int64_t{1} << 30) && wide <= int64_t{1} << 30);  // never overflows
      sum[i] = static_cast<int32_t>(wide);
    }
  }
  std::vector<float> result(elements);
  netfold::dequantise(reinterpret_cast<const uint8_t*>(sum.data()), elements, scale,
                      average ? ranks : 1, reinterpret_cast<uint8_t*>(result.data()));
  return result;
}

float draw(int kind) {
  const uint64_t bits = generator();
  const float unit = static_cast<float>(bits >> 40) / static_cast<float>(1 << 23) - 1.0F;
  switch (kind) {
    case 0:
      return unit;
    case 1:  // one huge among many tiny ones
      return bits % 64 == 0 ? unit * 1e30F : unit * 1e-20F;
    case 2:  // denormals
      return std::ldexp(unit, -130);
    case 3:  // near the largest
      return bits % 2 == 0 ? kLargest * unit : kLargest;
    case 4:
      return bits % 2 == 0 ? -0.0F : 0.0F;
    default:
      return std::ldexp(unit, static_cast<int>(bits % 60) - 30);
  }
}

// |result - exact| <= ranks * 2^(e + ceil(log2 ranks) - 31) + half a unit of the result.
void test_bound() {
  for (const uint32_t ranks : {2U, 3U, 4U, 5U, 8U, 16U, 33U, 63U, 64U}) {
    for (int kind = 0; kind < 6; ++kind) {
      for (const bool average : {false, true}) {
        std::vector<std::vector<float>> blocks(ranks, std::vector<float>(256));
        for (auto& block : blocks)
          for (float& x : block) x = draw(kind);
        int exponent = 0;
        const std::vector<float> result = reduce(blocks, average, &exponent);
        const int spare = std::bit_width(ranks - 1);
        const double quantised = std::ldexp(static_cast<double>(ranks), exponent + spare - 31);
        for (size_t i = 0; i < result.size(); ++i) {
          long double exact = 0;
          for (const auto& block : blocks) exact += static_cast<long double>(block[i]);
          const long double divisor = average ? ranks : 1;
          exact /= divisor;
          const long double up = quantised / divisor;
          if (std::isinf(result[i])) {  // as float32 has no greater ones
            CHECK(std::fabs(exact) + up > static_cast<long double>(kLargest));
            continue;
          }
          const long double rounding =
              std::ldexp(std::fabs(exact) + up, -24) * 1.0000001L + std::ldexp(1.0L, -150);
          CHECK(std::fabs(static_cast<long double>(result[i]) - exact) <= up + rounding);
        }
      }
    }
  }
}

void test_exact_where_it_can_be() {
  int exponent = 0;
  const std::vector<float> sum =
      reduce({{1.0F, 0.5F, -2.0F, 0.0F}, {1.0F, 0.25F, 2.0F, -0.0F}}, false, &exponent);
  CHECK((sum == std::vector<float>{2.0F, 0.75F, 0.0F, 0.0F}));
  CHECK(!std::signbit(sum[2]) && !std::signbit(sum[3]));  // a sum of zeros is +0
  const std::vector<float> halves = reduce({{3.0F}, {4.0F}}, true, &exponent);
  CHECK(halves[0] == 3.5F);
}

void test_classes() {
  const std::vector<float> mine = {1.0F, kInfinity, -kInfinity, kNan, kInfinity};
  const std::vector<float> other = {2.0F, 1.0F, -kInfinity, 0.0F, -kInfinity};
  uint8_t a[NF_FIXED_CLASS_BYTES];
  uint8_t b[NF_FIXED_CLASS_BYTES];
  netfold::classify(bytes_of(mine), mine.size(), a);
  netfold::classify(bytes_of(other), other.size(), b);
  for (size_t i = 0; i < NF_FIXED_CLASS_BYTES; ++i) a[i] |= b[i];
  std::vector<float> sums = {3.0F, 1.0F, 0.0F, 0.0F, 0.0F};
  netfold::apply_classes(a, sums.size(), reinterpret_cast<uint8_t*>(sums.data()));
  CHECK(sums[0] == 3.0F);
  CHECK(sums[1] == kInfinity);
  CHECK(sums[2] == -kInfinity);
  CHECK(std::bit_cast<uint32_t>(sums[3]) == 0x7FC0'0000);
  CHECK(std::isnan(sums[4]));  // +inf and -inf
  std::vector<int32_t> integers(mine.size(), 7);
  netfold::quantise(bytes_of(mine), mine.size(), 20, reinterpret_cast<uint8_t*>(integers.data()));
  CHECK((integers == std::vector<int32_t>{1 << 20, 0, 0, 0, 0}));
}

}  // namespace

int main() {
  test_heads();
  test_bound();
  test_exact_where_it_can_be();
  test_classes();
  return 0;
}
