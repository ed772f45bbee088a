#include "sim/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "sim/random.h"

namespace netfold {
namespace {

template <typename Float>
using Bits = std::conditional_t<sizeof(Float) == 4, uint32_t, uint64_t>;

template <typename Float>
Bits<Float> compute_float(uint8_t op, Bits<Float> a, Bits<Float> b) {
  constexpr Bits<Float> kQuietBit = Bits<Float>{1} << (sizeof(Float) == 4 ? 22 : 51);
  const auto x = std::bit_cast<Float>(a);
  const auto y = std::bit_cast<Float>(b);
  if (std::isnan(x)) return a | kQuietBit;
  if (std::isnan(y)) return b | kQuietBit;
  const Float outcome = op == NF_OP_PRODUCT ? x * y : x + y;
  constexpr Bits<Float> kDefaultNan = ~(kQuietBit - 1);  // sign, exponent and quiet bit
  return std::isnan(outcome) ? kDefaultNan : std::bit_cast<Bits<Float>>(outcome);
}

// MIN and MAX keep the accumulator unless the addend is truly beyond it.
template <typename Float>
Bits<Float> choose_float(uint8_t op, Bits<Float> a, Bits<Float> b) {
  const auto x = std::bit_cast<Float>(a);
  const auto y = std::bit_cast<Float>(b);
  if (std::isnan(x)) return a;
  if (std::isnan(y)) return b;
  return (op == NF_OP_MIN ? y < x : y > x) ? b : a;
}

template <typename Float>
Bits<Float> fold_float(uint8_t op, Bits<Float> a, Bits<Float> b) {
  const bool chooses = op == NF_OP_MIN || op == NF_OP_MAX;
  return chooses ? choose_float<Float>(op, a, b) : compute_float<Float>(op, a, b);
}

template <typename Int>
Int fold_int(uint8_t op, Int a, Int b) {
  const auto x = static_cast<uint64_t>(a);
  const auto y = static_cast<uint64_t>(b);
  switch (op) {
    case NF_OP_MIN:
      return b < a ? b : a;
    case NF_OP_MAX:
      return b > a ? b : a;
    case NF_OP_PRODUCT:
      return static_cast<Int>(x * y);
    case NF_OP_BAND:
      return static_cast<Int>(x & y);
    case NF_OP_BOR:
      return static_cast<Int>(x | y);
    case NF_OP_BXOR:
      return static_cast<Int>(x ^ y);
    default:
      return static_cast<Int>(x + y);
  }
}

uint8_t fold_bool(uint8_t op, uint8_t a, uint8_t b) {
  if (op == NF_OP_BXOR) return a != b;
  const bool any = op == NF_OP_SUM || op == NF_OP_MAX || op == NF_OP_BOR;
  return any ? (a != 0 || b != 0) : (a != 0 && b != 0);
}

template <typename Element>
Element load(const std::vector<uint8_t>& tensor, size_t index) {
  Element element;
  std::memcpy(&element, tensor.data() + index * sizeof element, sizeof element);
  return element;
}

template <typename Element>
void store(std::vector<uint8_t>* tensor, size_t index, Element element) {
  std::memcpy(tensor->data() + index * sizeof element, &element, sizeof element);
}

template <typename Element, typename Fold>
void fold_tensor(std::vector<uint8_t>* sum, const std::vector<uint8_t>& input, Fold fold) {
  for (size_t i = 0; i < sum->size() / sizeof(Element); ++i) {
    store(sum, i, fold(load<Element>(*sum, i), load<Element>(input, i)));
  }
}

// Exponents far enough apart that another order of adding gives other bits.
uint32_t draw_float(Random* random, bool specials) {
  constexpr uint32_t kSpecials[] = {0x7F80'0000, 0xFF80'0000, 0x7FC0'1234, 0x7FA0'0001,
                                    0xFFC0'0077, 0x8000'0000, 0x0000'0001, 0x7F7F'FFFF};
  const uint64_t bits = random->next();
  if (specials && bits >> 60 == 0) return kSpecials[bits % 8];
  const uint32_t exponent = 118 + static_cast<uint32_t>(bits >> 40) % 20;
  return (static_cast<uint32_t>(bits) & 0x807F'FFFF) | exponent << 23;
}

uint64_t draw_double(Random* random, bool specials) {
  constexpr uint64_t kSpecials[] = {0x7FF0'0000'0000'0000, 0xFFF0'0000'0000'0000,
                                    0x7FF8'0000'0000'1234, 0x7FF0'0000'0000'0001,
                                    0x8000'0000'0000'0000, 0x0000'0000'0000'0001};
  const uint64_t bits = random->next();
  if (specials && bits >> 60 == 0) return kSpecials[bits % 6];
  return (bits & 0x800F'FFFF'FFFF'FFFF) | (1010 + (bits >> 52) % 40) << 52;
}

template <typename Element>
std::vector<uint8_t> fold_all(const CollectivePlan& plan, const FoldNode& node,
                              Element (*function)(uint8_t, Element, Element)) {
  if (node.children.empty()) return make_input(plan, node.rank);
  std::vector<uint8_t> sum = fold_all(plan, node.children.front(), function);
  for (size_t i = 1; i < node.children.size(); ++i)
    fold_tensor<Element>(&sum, fold_all(plan, node.children[i], function),
                         [&](Element a, Element b) { return function(plan.op, a, b); });
  return sum;
}

template <typename Float>
void divide_all(std::vector<uint8_t>* sum, uint32_t ranks) {
  for (size_t i = 0; i < sum->size() / sizeof(Float); ++i)
    store(sum, i, load<Float>(*sum, i) / static_cast<Float>(ranks));
}

// ---- fixed32, by the definition in docs/numbers.md ----

constexpr size_t kBlock = 256;
constexpr float kLargest = std::numeric_limits<float>::max();

// The least e with |x| <= 2^e, at least -126.
int exponent_of(float x) {
  int exponent = 0;
  const float fraction = std::frexp(std::fabs(x), &exponent);
  if (fraction == 0.5F) exponent -= 1;
  return x == 0 ? -126 : std::max(exponent, -126);
}

unsigned class_of(float x) {
  if (std::isnan(x)) return 3;
  if (!std::isinf(x)) return 0;
  return x > 0 ? 1 : 2;
}

Reference make_fixed_reference(const CollectivePlan& plan, uint32_t ranks) {
  std::vector<std::vector<uint8_t>> inputs;
  for (uint32_t rank = 0; rank < ranks; ++rank) inputs.push_back(make_input(plan, rank));
  const int spare = static_cast<int>(std::ceil(std::log2(ranks)));
  Reference reference;
  reference.tensor.resize(plan.elements * 4);
  Reference::Pass heads;
  Reference::Pass sums{.element_bytes = 4, .bytes = std::vector<uint8_t>(plan.elements * 4)};
  Reference::Pass classes;
  for (size_t first = 0; first < plan.elements; first += kBlock) {
    const size_t end = std::min<size_t>(first + kBlock, plan.elements);
    int exponent = -126;
    bool special = false;
    std::vector<uint8_t> of_block(64);
    for (size_t i = first; i < end; ++i)
      for (const auto& input : inputs) {
        const auto x = load<float>(input, i);
        if (std::fabs(x) <= kLargest) exponent = std::max(exponent, exponent_of(x));
        special |= class_of(x) != 0;
        of_block[(i - first) / 4] |= static_cast<uint8_t>(class_of(x) << ((i - first) % 4 * 2));
      }
    heads.bytes.push_back(static_cast<uint8_t>(exponent + 126));
    heads.bytes.push_back(special);
    if (special) classes.bytes.insert(classes.bytes.end(), of_block.begin(), of_block.end());
    const int scale = 30 - spare - exponent;
    for (size_t i = first; i < end; ++i) {
      int64_t sum = 0;
      unsigned found = 0;
      for (const auto& input : inputs) {
        const auto x = load<float>(input, i);
        found |= class_of(x);
        if (class_of(x) == 0) sum += std::llrint(std::ldexp(static_cast<double>(x), scale));
      }
      store(&sums.bytes, i, static_cast<int32_t>(sum));
      const double total = std::ldexp(static_cast<double>(sum), -scale);
      const double divisor = plan.op == NF_OP_AVG ? ranks : 1;
      store(&reference.tensor, i, static_cast<float>(total / divisor));
      constexpr uint32_t kSpecial[] = {0, 0x7F80'0000, 0xFF80'0000, 0x7FC0'0000};
      if (found != 0) store(&reference.tensor, i, kSpecial[found]);
    }
  }
  reference.passes = {heads, sums, classes};
  return reference;
}

}  // namespace

uint64_t Reference::chunks(size_t payload_bytes) const {
  uint64_t count = 0;
  for (const Pass& pass : passes) {
    const size_t size = payload_bytes / pass.element_bytes * pass.element_bytes;
    count += (pass.bytes.size() + size - 1) / size;
  }
  return count;
}

std::span<const uint8_t> Reference::chunk(uint64_t index, size_t payload_bytes) const {
  for (const Pass& pass : passes) {
    const size_t size = payload_bytes / pass.element_bytes * pass.element_bytes;
    const uint64_t count = (pass.bytes.size() + size - 1) / size;
    if (index < count) {
      const size_t at = index * size;
      return std::span(pass.bytes).subspan(at, std::min(size, pass.bytes.size() - at));
    }
    index -= count;
  }
  return {};
}

Reference Reference::part(uint64_t first, uint64_t elements) const {
  const auto slice = [](const Pass& of, uint64_t from, uint64_t count) {
    const auto begin = of.bytes.begin() + static_cast<ptrdiff_t>(from * of.element_bytes);
    const auto end = begin + static_cast<ptrdiff_t>(count * of.element_bytes);
    return Pass{.element_bytes = of.element_bytes, .bytes = {begin, end}};
  };
  Reference part;
  if (passes.size() == 1) {
    part.passes = {slice(passes[0], first, elements)};
    return part;
  }
  const uint64_t block = first / kBlock;
  const uint64_t blocks = (elements + kBlock - 1) / kBlock;
  const auto specials = [&](uint64_t from, uint64_t to) {
    uint64_t count = 0;
    for (uint64_t i = from; i < to; ++i) count += passes[0].bytes[2 * i + 1];
    return count;
  };
  part.passes = {slice(passes[0], 2 * block, 2 * blocks), slice(passes[1], first, elements),
                 slice(passes[2], 64 * specials(0, block), 64 * specials(block, block + blocks))};
  return part;
}

size_t element_bytes(const CollectivePlan& plan) {
  return nf_dtype_bytes(plan.dtype);
}

std::vector<uint8_t> make_input(const CollectivePlan& plan, uint32_t rank) {
  Random random(derive_seed(plan.content_seed, rank));
  const size_t bytes = element_bytes(plan);
  std::vector<uint8_t> tensor(plan.elements * bytes);
  for (size_t i = 0; i < plan.elements; ++i) {
    uint64_t element = 0;
    if (plan.dtype == NF_DTYPE_FLOAT32)
      element = draw_float(&random, plan.specials);
    else if (plan.dtype == NF_DTYPE_FLOAT64)
      element = draw_double(&random, plan.specials);
    else if (plan.dtype == NF_DTYPE_BOOL)
      element = random.next() & 1;
    else
      element = random.next();
    std::memcpy(tensor.data() + i * bytes, &element, bytes);
  }
  return tensor;
}

Reference make_reference(const CollectivePlan& plan, uint32_t ranks, const FoldNode& root) {
  if (plan.mode == NF_MODE_FIXED32) return make_fixed_reference(plan, ranks);
  Reference reference;
  std::vector<uint8_t>& sum = reference.tensor;
  switch (plan.dtype) {
    case NF_DTYPE_FLOAT32:
      sum = fold_all<uint32_t>(plan, root, fold_float<float>);
      if (plan.op == NF_OP_AVG) divide_all<float>(&sum, ranks);
      break;
    case NF_DTYPE_FLOAT64:
      sum = fold_all<uint64_t>(plan, root, fold_float<double>);
      if (plan.op == NF_OP_AVG) divide_all<double>(&sum, ranks);
      break;
    case NF_DTYPE_BOOL:
      sum = fold_all<uint8_t>(plan, root, fold_bool);
      break;
    case NF_DTYPE_UINT8:
      sum = fold_all<uint8_t>(plan, root, fold_int<uint8_t>);
      break;
    case NF_DTYPE_INT8:
      sum = fold_all<int8_t>(plan, root, fold_int<int8_t>);
      break;
    case NF_DTYPE_INT16:
      sum = fold_all<int16_t>(plan, root, fold_int<int16_t>);
      break;
    case NF_DTYPE_INT32:
      sum = fold_all<int32_t>(plan, root, fold_int<int32_t>);
      break;
    default:
      sum = fold_all<int64_t>(plan, root, fold_int<int64_t>);
  }
  reference.passes = {{.element_bytes = element_bytes(plan), .bytes = reference.tensor}};
  return reference;
}

}  // namespace netfold
