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

size_t element_bytes(uint8_t dtype) {
  return nf_dtype_bytes(dtype);
}

bool is_float(uint8_t dtype) {
  return dtype == NF_DTYPE_FLOAT32 || dtype == NF_DTYPE_FLOAT64;
}

// One element at a time, straight from the description in kernels.h.
template <class Float, class Bits>
Bits naive_float(uint8_t op, Bits left, Bits right) {
  constexpr Bits kQuiet = sizeof(Bits) == 4 ? 0x00400000 : Bits{1} << 51;
  constexpr Bits kDefaultNan = sizeof(Bits) == 4 ? 0xFFC00000 : Bits{0xFFF8} << 48;
  const bool chooses = op == NF_OP_MIN || op == NF_OP_MAX;
  const auto a = std::bit_cast<Float>(left);
  const auto b = std::bit_cast<Float>(right);
  if (std::isnan(a)) return chooses ? left : left | kQuiet;
  if (std::isnan(b)) return chooses ? right : right | kQuiet;
  if (op == NF_OP_MIN) return b < a ? right : left;
  if (op == NF_OP_MAX) return b > a ? right : left;
  const Float outcome = op == NF_OP_PRODUCT ? a * b : a + b;
  return std::isnan(outcome) ? kDefaultNan : std::bit_cast<Bits>(outcome);
}

template <class Integer>
Integer naive_integer(uint8_t op, Integer a, Integer b) {
  switch (op) {
    case NF_OP_MIN:
      return b < a ? b : a;
    case NF_OP_MAX:
      return b > a ? b : a;
    case NF_OP_PRODUCT:
      return static_cast<Integer>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    case NF_OP_BAND:
      return static_cast<Integer>(a & b);
    case NF_OP_BOR:
      return static_cast<Integer>(a | b);
    case NF_OP_BXOR:
      return static_cast<Integer>(a ^ b);
    default:
      return static_cast<Integer>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
}

uint8_t naive_bool(uint8_t op, uint8_t a, uint8_t b) {
  if (op == NF_OP_BXOR) return a ^ b;
  return op == NF_OP_SUM || op == NF_OP_MAX || op == NF_OP_BOR ? a | b : a & b;
}

template <class Element, class Function>
void each(Function function, uint8_t* accumulator, const uint8_t* addend, size_t elements) {
  for (size_t i = 0; i < elements; ++i) {
    Element left;
    Element right;
    std::memcpy(&left, accumulator + i * sizeof left, sizeof left);
    std::memcpy(&right, addend + i * sizeof right, sizeof right);
    left = function(left, right);
    std::memcpy(accumulator + i * sizeof left, &left, sizeof left);
  }
}

template <class Integer>
void each_integer(uint8_t op, uint8_t* accumulator, const uint8_t* addend, size_t elements) {
  each<Integer>([op](Integer a, Integer b) { return naive_integer(op, a, b); }, accumulator, addend,
                elements);
}

void naive_fold(Pair pair, uint8_t* accumulator, const uint8_t* addend, size_t elements) {
  const uint8_t op = pair.op;
  switch (pair.dtype) {
    case NF_DTYPE_FLOAT32:
      return each<uint32_t>([op](uint32_t a, uint32_t b) { return naive_float<float>(op, a, b); },
                            accumulator, addend, elements);
    case NF_DTYPE_FLOAT64:
      return each<uint64_t>([op](uint64_t a, uint64_t b) { return naive_float<double>(op, a, b); },
                            accumulator, addend, elements);
    case NF_DTYPE_BOOL:
      return each<uint8_t>([op](uint8_t a, uint8_t b) { return naive_bool(op, a, b); }, accumulator,
                           addend, elements);
    case NF_DTYPE_UINT8:
      return each_integer<uint8_t>(op, accumulator, addend, elements);
    case NF_DTYPE_INT8:
      return each_integer<int8_t>(op, accumulator, addend, elements);
    case NF_DTYPE_INT16:
      return each_integer<int16_t>(op, accumulator, addend, elements);
    case NF_DTYPE_INT32:
      return each_integer<int32_t>(op, accumulator, addend, elements);
    default:
      return each_integer<int64_t>(op, accumulator, addend, elements);
  }
}

template <class Float>
void naive_divide(uint8_t* accumulator, size_t elements, uint32_t ranks) {
  for (size_t i = 0; i < elements; ++i) {
    Float value;
    std::memcpy(&value, accumulator + i * sizeof value, sizeof value);
    value /= static_cast<Float>(ranks);
    std::memcpy(accumulator + i * sizeof value, &value, sizeof value);
  }
}

void naive_finish(uint8_t dtype, uint8_t* accumulator, size_t elements, uint32_t ranks) {
  if (dtype == NF_DTYPE_FLOAT32) naive_divide<float>(accumulator, elements, ranks);
  if (dtype == NF_DTYPE_FLOAT64) naive_divide<double>(accumulator, elements, ranks);
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
                                  0x800000007FFFFFFF,
                                  0x7F,
                                  0x80,
                                  0xFF,
                                  0x7FFF,
                                  0x8000};
constexpr uint64_t kDoubles[] = {0x0000000000000000, 0x8000000000000000, 0x0000000000000001,
                                 0x800FFFFFFFFFFFFF, 0x0010000000000000, 0x3FF0000000000000,
                                 0xBFF0000000000001, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000,
                                 0xFFF0000000000000, 0x7FF8000000001234, 0xFFF0000000000001,
                                 0xFFFFFFFFFFFFFFFF};

// Every pair of edge values, in `left` and `right`.
void edge_pairs(uint8_t dtype, std::vector<uint8_t>& left, std::vector<uint8_t>& right) {
  std::vector<uint64_t> values(std::begin(kIntegers), std::end(kIntegers));
  if (dtype == NF_DTYPE_FLOAT32) values.assign(std::begin(kFloats), std::end(kFloats));
  if (dtype == NF_DTYPE_FLOAT64) values.assign(std::begin(kDoubles), std::end(kDoubles));
  if (dtype == NF_DTYPE_BOOL) values = {0, 1};
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

uint64_t draw(uint8_t dtype) {
  const uint64_t bits = generator();
  const uint64_t kind = generator() % 8;
  switch (dtype) {
    case NF_DTYPE_FLOAT32:
      if (kind == 0) return kFloats[bits % std::size(kFloats)];
      return kind > 2 ? (bits & 0x83FFFFFF) | 0x3C000000 : bits;  // of like size: sums round
    case NF_DTYPE_FLOAT64:
      if (kind == 0) return kDoubles[bits % std::size(kDoubles)];
      return kind > 2 ? (bits & 0x803FFFFFFFFFFFFF) | 0x3FC0000000000000 : bits;
    case NF_DTYPE_BOOL:
      return bits & 1;
    default:
      return kind == 0 ? kIntegers[bits % std::size(kIntegers)] : bits;
  }
}

void fill(uint8_t dtype, std::vector<uint8_t>& bytes) {
  const size_t size = element_bytes(dtype);
  for (size_t at = 0; at + size <= bytes.size(); at += size) {
    const uint64_t element = draw(dtype);
    std::memcpy(bytes.data() + at, &element, size);
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
    naive_finish(pair.dtype, expected.data() + kGuard + left_offset, elements, ranks);
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
      const bool known = op < NF_OP_COUNT && nf_dtype_bytes(dtype) != 0 &&
                         dtype != NF_DTYPE_FLOAT16 && dtype != NF_DTYPE_BFLOAT16;
      const bool bitwise = op == NF_OP_BAND || op == NF_OP_BOR || op == NF_OP_BXOR;
      const bool expected =
          known && (is_float(static_cast<uint8_t>(dtype)) ? !bitwise : op != NF_OP_AVG);
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
    for (uint8_t op = 0; op < NF_OP_COUNT; ++op) {
      for (uint8_t dtype = 0; dtype < NF_DTYPE_COUNT; ++dtype) {
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
