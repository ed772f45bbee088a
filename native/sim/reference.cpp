#include "sim/reference.h"

#include <bit>
#include <cmath>

#include "sim/random.h"

namespace netfold {
namespace {

constexpr uint32_t kQuietBit = 0x0040'0000;
constexpr uint32_t kDefaultNan = 0xFFC0'0000;

bool is_nan(uint32_t bits) {
  return std::isnan(std::bit_cast<float>(bits));
}

uint32_t add_floats(uint32_t a, uint32_t b) {
  if (is_nan(a)) return a | kQuietBit;
  if (is_nan(b)) return b | kQuietBit;
  const float sum = std::bit_cast<float>(a) + std::bit_cast<float>(b);
  return std::isnan(sum) ? kDefaultNan : std::bit_cast<uint32_t>(sum);
}

uint32_t divide_float(uint32_t sum, uint32_t ranks) {
  if (is_nan(sum)) return sum;
  return std::bit_cast<uint32_t>(std::bit_cast<float>(sum) / static_cast<float>(ranks));
}

// MIN and MAX keep the accumulator unless the addend is truly beyond it.
uint32_t choose_float(uint8_t op, uint32_t a, uint32_t b) {
  if (is_nan(a)) return a;
  if (is_nan(b)) return b;
  const float x = std::bit_cast<float>(a);
  const float y = std::bit_cast<float>(b);
  return (op == NF_OP_MIN ? y < x : y > x) ? b : a;
}

uint32_t fold_float(uint8_t op, uint32_t a, uint32_t b) {
  return op == NF_OP_SUM || op == NF_OP_AVG ? add_floats(a, b) : choose_float(op, a, b);
}

template <typename Int>
Int fold_int(uint8_t op, Int a, Int b) {
  using Unsigned = std::make_unsigned_t<Int>;
  if (op == NF_OP_MIN) return b < a ? b : a;
  if (op == NF_OP_MAX) return b > a ? b : a;
  return static_cast<Int>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
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

}  // namespace

size_t element_bytes(const CollectivePlan& plan) {
  return nf_dtype_bytes(plan.dtype);
}

std::vector<uint8_t> make_input(const CollectivePlan& plan, uint32_t rank) {
  Random random(derive_seed(plan.content_seed, rank));
  std::vector<uint8_t> tensor(plan.elements * element_bytes(plan));
  for (size_t i = 0; i < plan.elements; ++i) {
    if (plan.dtype == NF_DTYPE_FLOAT32) {
      store(&tensor, i, draw_float(&random, plan.specials));
    } else if (plan.dtype == NF_DTYPE_INT32) {
      store(&tensor, i, static_cast<uint32_t>(random.next()));
    } else {
      store(&tensor, i, random.next());
    }
  }
  return tensor;
}

std::vector<uint8_t> make_reference(const CollectivePlan& plan, uint32_t ranks) {
  const uint8_t op = plan.op;
  std::vector<uint8_t> sum = make_input(plan, 0);
  for (uint32_t rank = 1; rank < ranks; ++rank) {
    const std::vector<uint8_t> input = make_input(plan, rank);
    if (plan.dtype == NF_DTYPE_FLOAT32) {
      fold_tensor<uint32_t>(&sum, input,
                            [op](uint32_t a, uint32_t b) { return fold_float(op, a, b); });
    } else if (plan.dtype == NF_DTYPE_INT32) {
      fold_tensor<int32_t>(&sum, input, [op](int32_t a, int32_t b) { return fold_int(op, a, b); });
    } else {
      fold_tensor<int64_t>(&sum, input, [op](int64_t a, int64_t b) { return fold_int(op, a, b); });
    }
  }
  if (op != NF_OP_AVG) return sum;
  for (size_t i = 0; i < plan.elements; ++i) {
    store(&sum, i, divide_float(load<uint32_t>(sum, i), ranks));
  }
  return sum;
}

}  // namespace netfold
