#include "core/kernels.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/wire_constants.h"
#include "tests/check.h"

namespace {

using netfold::KernelSet;

struct Pair {
  uint8_t op;
  uint8_t dtype;
};

constexpr uint8_t kOps[] = {NF_OP_SUM, NF_OP_AVG, NF_OP_MIN, NF_OP_MAX};
constexpr uint8_t kDtypes[] = {NF_DTYPE_FLOAT32, NF_DTYPE_INT32, NF_DTYPE_INT64};

size_t element_bytes(uint8_t dtype) {
  return dtype == NF_DTYPE_INT64 ? 8 : 4;
}

bool is_nan(uint32_t bits) {
  return (bits & 0x7FFFFFFF) > 0x7F800000;
}

// One element at a time, straight from the description in kernels.h.
uint32_t naive_float(uint8_t op, uint32_t left, uint32_t right) {
  const bool adds = op == NF_OP_SUM || op == NF_OP_AVG;
  if (is_nan(left)) return adds ? left | 0x00400000 : left;
  if (is_nan(right)) return adds ? right | 0x00400000 : right;
  const float a = std::bit_cast<float>(left);
  const float b = std::bit_cast<float>(right);
  if (op == NF_OP_MIN) return b < a ? right : left;
  if (op == NF_OP_MAX) return b > a ? right : left;
  if (std::isinf(a) && std::isinf(b) && a != b) return 0xFFC00000;
  return std::bit_cast<uint32_t>(a + b);
}

template <class Signed, class Unsigned>
Unsigned naive_integer(uint8_t op, Unsigned left, Unsigned right) {
  const auto a = static_cast<Signed>(left);
  const auto b = static_cast<Signed>(right);
  if (op == NF_OP_MIN) return b < a ? right : left;
  if (op == NF_OP_MAX) return b > a ? right : left;
  return left + right;
}

void naive_fold(Pair pair, uint8_t* accumulator, const uint8_t* addend, size_t elements) {
  const size_t bytes = element_bytes(pair.dtype);
  for (size_t i = 0; i < elements; ++i) {
    uint64_t left = 0;
    uint64_t right = 0;
    std::memcpy(&left, accumulator + i * bytes, bytes);
    std::memcpy(&right, addend + i * bytes, bytes);
    if (pair.dtype == NF_DTYPE_FLOAT32) {
      left = naive_float(pair.op, static_cast<uint32_t>(left), static_cast<uint32_t>(right));
    } else if (pair.dtype == NF_DTYPE_INT32) {
      left = naive_integer<int32_t>(pair.op, static_cast<uint32_t>(left),
                                    static_cast<uint32_t>(right));
    } else {
      left = naive_integer<int64_t>(pair.op, left, right);
    }
    std::memcpy(accumulator + i * bytes, &left, bytes);
  }
}

void naive_finish(uint8_t* accumulator, size_t elements, uint32_t ranks) {
  for (size_t i = 0; i < elements; ++i) {
    uint32_t bits;
    std::memcpy(&bits, accumulator + 4 * i, 4);
    bits = is_nan(bits)
               ? bits | 0x00400000
               : std::bit_cast<uint32_t>(std::bit_cast<float>(bits) / static_cast<float>(ranks));
    std::memcpy(accumulator + 4 * i, &bits, 4);
  }
}

// Values at the edges: zeros, denormals, extremes, infinities, quiet and signalling NaNs of both
// signs and several payloads.
constexpr uint32_t kFloats[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000,
    0x80800000, 0x3F800000, 0xBF800000, 0x3F800001, 0x4B800000, 0x7F7FFFFF, 0xFF7FFFFF,
    0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7FC12345, 0xFFC54321, 0x7F800001,
    0xFF800001, 0x7FA5A5A5, 0xFFBFFFFF, 0x7FFFFFFF, 0xFFFFFFFF};
constexpr uint64_t kIntegers[] = {0,
                                  1,
                                  ~uint64_t{0},
                                  0x7FFFFFFF,
                                  0x80000000,
                                  0xFFFFFFFF,
                                  0x7FFFFFFFFFFFFFFF,
                                  0x8000000000000000,
                                  0x7FFFFFFF80000000,
                                  0x800000007FFFFFFF};

// Every pair of edge values, in `left` and `right`.
void edge_pairs(uint8_t dtype, std::vector<uint8_t>& left, std::vector<uint8_t>& right) {
  std::vector<uint64_t> values(std::begin(kIntegers), std::end(kIntegers));
  if (dtype == NF_DTYPE_FLOAT32) values.assign(std::begin(kFloats), std::end(kFloats));
  const size_t bytes = element_bytes(dtype);
  for (const uint64_t a : values) {
    for (const uint64_t b : values) {
      const auto* const a_bytes = reinterpret_cast<const uint8_t*>(&a);
      const auto* const b_bytes = reinterpret_cast<const uint8_t*>(&b);
      left.insert(left.end(), a_bytes, a_bytes + bytes);
      right.insert(right.end(), b_bytes, b_bytes + bytes);
    }
  }
}

std::mt19937_64 generator{1472};

void fill(uint8_t dtype, std::vector<uint8_t>& bytes) {
  for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
    auto word = static_cast<uint32_t>(generator());
    if (dtype == NF_DTYPE_FLOAT32) {
      const uint64_t kind = generator() % 8;
      if (kind == 0) word = kFloats[generator() % std::size(kFloats)];
      if (kind > 2) word = (word & 0x83FFFFFF) | 0x3C000000;  // of like size: sums round
    } else if (generator() % 8 == 0) {
      word = static_cast<uint32_t>(kIntegers[generator() % std::size(kIntegers)]);
    }
    std::memcpy(bytes.data() + at, &word, 4);
  }
}

constexpr size_t kGuard = 64;  // bytes around the elements that must not change

// Folds, and for AVG finishes, on copies at the given misalignments and compares with the naive
// result, the surrounding bytes included.
void check_fold(Pair pair, const uint8_t* left, const uint8_t* right, size_t elements,
                size_t left_offset, size_t right_offset, uint32_t ranks) {
  const size_t size = elements * element_bytes(pair.dtype);
  std::vector<uint8_t> accumulator(size + 3 * kGuard, 0xA5);
  std::vector<uint8_t> addend(size + 3 * kGuard, 0x5A);
  uint8_t* const target = accumulator.data() + kGuard + left_offset;
  uint8_t* const source = addend.data() + kGuard + right_offset;
  if (size > 0) {
    std::memcpy(target, left, size);
    std::memcpy(source, right, size);
  }
  std::vector<uint8_t> expected = accumulator;
  const std::vector<uint8_t> untouched = addend;
  naive_fold(pair, expected.data() + kGuard + left_offset, source, elements);
  netfold::fold(pair.op, pair.dtype, target, source, elements);
  CHECK(accumulator == expected);
  CHECK(addend == untouched);

  if (pair.op == NF_OP_AVG) {
    naive_finish(expected.data() + kGuard + left_offset, elements, ranks);
  }
  netfold::finish(pair.op, pair.dtype, target, elements, ranks);
  CHECK(accumulator == expected);
}

void check_set(Pair pair) {
  std::vector<uint8_t> left;
  std::vector<uint8_t> right;
  edge_pairs(pair.dtype, left, right);
  const size_t bytes = element_bytes(pair.dtype);
  for (const uint32_t ranks : {1U, 2U, 3U, 7U, 64U, 16777217U}) {
    check_fold(pair, left.data(), right.data(), left.size() / bytes, 0, 0, ranks);
  }

  std::vector<uint8_t> a(40000);
  std::vector<uint8_t> b(40000);
  for (int round = 0; round < 8; ++round) {
    fill(pair.dtype, a);
    fill(pair.dtype, b);
    for (size_t elements = 0; elements <= 100; ++elements) {
      check_fold(pair, a.data(), b.data(), elements, generator() % kGuard, generator() % kGuard,
                 static_cast<uint32_t>(1 + generator() % 1000));
    }
    for (const size_t elements : {352UL, 1024UL, 2048UL, 2049UL, 4999UL}) {
      check_fold(pair, a.data(), b.data(), elements, generator() % kGuard, generator() % kGuard,
                 static_cast<uint32_t>(1 + generator() % 1000));
    }
  }
}

void check_exists() {
  for (unsigned op = 0; op < 256; ++op) {
    for (unsigned dtype = 0; dtype < 256; ++dtype) {
      const bool simple = op == NF_OP_SUM || op == NF_OP_MIN || op == NF_OP_MAX;
      const bool expected = (dtype == NF_DTYPE_FLOAT32 && (simple || op == NF_OP_AVG)) ||
                            ((dtype == NF_DTYPE_INT32 || dtype == NF_DTYPE_INT64) && simple);
      const auto op8 = static_cast<uint8_t>(op);
      const auto dtype8 = static_cast<uint8_t>(dtype);
      CHECK(netfold::kernel_exists(op8, dtype8) == expected);
      if (!expected) {  // nothing happens
        uint64_t accumulator = 5;
        const uint64_t addend = 3;
        netfold::fold(op8, dtype8, reinterpret_cast<uint8_t*>(&accumulator),
                      reinterpret_cast<const uint8_t*>(&addend), 1);
        netfold::finish(op8, dtype8, reinterpret_cast<uint8_t*>(&accumulator), 1, 3);
        CHECK(accumulator == 5);
      }
    }
  }
}

}  // namespace

int main() {
  const KernelSet best = netfold::best_kernel_set();
  CHECK(netfold::kernel_set() == best);
  for (const KernelSet set : {KernelSet::portable, KernelSet::avx2, KernelSet::avx512}) {
    if (!netfold::use_kernel_set(set)) {
      CHECK(set > best);
      CHECK(netfold::kernel_set() != set);
      std::printf("%s: not on this CPU\n", netfold::kernel_set_name(set));
      continue;
    }
    CHECK(netfold::kernel_set() == set);
    check_exists();
    for (const uint8_t op : kOps) {
      for (const uint8_t dtype : kDtypes) {
        if (netfold::kernel_exists(op, dtype)) check_set({op, dtype});
      }
    }
    std::printf("%s: ok\n", netfold::kernel_set_name(set));
  }
  CHECK(std::string(netfold::kernel_set_name(KernelSet::portable)) == "portable");
  CHECK(std::string(netfold::kernel_set_name(KernelSet::avx2)) == "avx2");
  CHECK(std::string(netfold::kernel_set_name(KernelSet::avx512)) == "avx512");
  return 0;
}
