#include "core/kernels.h"

#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <type_traits>

#include "core/wire_constants.h"

#if defined(__x86_64__)
#define NF_KERNELS_X86 1
#include <immintrin.h>
#endif

namespace netfold {
namespace {

static_assert(std::endian::native == std::endian::little, "netfold runs on little-endian hosts");

using Fold = void (*)(uint8_t* accumulator, const uint8_t* addend, size_t elements) noexcept;
using Divide = void (*)(uint8_t* accumulator, size_t elements, double divisor) noexcept;

struct Kernels {
  KernelSet set = KernelSet::portable;
  Fold folds[NF_DTYPE_COUNT][NF_OP_COUNT] = {};  // null: none
  Divide divide_float32 = nullptr;
  Divide divide_float64 = nullptr;
};

// ---- portable: plain loops that the compiler may vectorise ----

namespace portable {

template <class Float>
struct Ieee;

template <>
struct Ieee<float> {
  using Word = uint32_t;
  using Signed = int32_t;
  static constexpr Word kQuiet = 0x0040'0000;
  static constexpr Word kInfinity = 0x7F80'0000;
};

template <>
struct Ieee<double> {
  using Word = uint64_t;
  using Signed = int64_t;
  static constexpr Word kQuiet = 0x0008'0000'0000'0000;
  static constexpr Word kInfinity = 0x7FF0'0000'0000'0000;
};

template <class Float, class Word = typename Ieee<Float>::Word>
constexpr Word magnitude(Word bits) noexcept {
  return static_cast<Word>(bits << 1) >> 1;
}

template <class Float, class Word = typename Ieee<Float>::Word>
constexpr bool is_nan(Word bits) noexcept {
  using Signed = typename Ieee<Float>::Signed;  // vector units compare signed words
  return static_cast<Signed>(magnitude<Float>(bits)) > static_cast<Signed>(Ieee<Float>::kInfinity);
}

// Elements as unsigned words. No branches, so that the compiler can vectorise the loop.
template <class Float, class Operation>
struct FloatArithmetic {
  using Word = typename Ieee<Float>::Word;
  static Word apply(Word accumulator, Word addend) noexcept {
    constexpr Word kQuiet = Ieee<Float>::kQuiet;
    // x86's; other CPUs have others
    constexpr Word kDefaultNan = ~(~Word{0} >> 1) | Ieee<Float>::kInfinity | kQuiet;
    const Word outcome = std::bit_cast<Word>(
        Operation{}(std::bit_cast<Float>(accumulator), std::bit_cast<Float>(addend)));
    // Which NaN an operation returns depends on the CPU and on the compiler's order of operands.
    const Word second = is_nan<Float>(addend) ? addend | kQuiet : kDefaultNan;
    const Word nan = is_nan<Float>(accumulator) ? accumulator | kQuiet : second;
    return is_nan<Float>(outcome) ? nan : outcome;
  }
};

// Maps non-NaN floats to integers of the same order; -0 and +0 both become 0.
template <class Float, class Word = typename Ieee<Float>::Word>
constexpr auto ordered(Word bits) noexcept {
  const auto size = static_cast<typename Ieee<Float>::Signed>(magnitude<Float>(bits));
  return static_cast<typename Ieee<Float>::Signed>(bits) < 0 ? -size : size;
}

template <class Float, bool kMax>
struct FloatExtreme {
  using Word = typename Ieee<Float>::Word;
  static Word apply(Word accumulator, Word addend) noexcept {
    const auto old_rank = ordered<Float>(accumulator);
    const auto new_rank = ordered<Float>(addend);
    const bool better = kMax ? new_rank > old_rank : new_rank < old_rank;
    const bool take = (better | is_nan<Float>(addend)) & !is_nan<Float>(accumulator);
    return take ? addend : accumulator;
  }
};

// Words narrower than int would be promoted, so arithmetic is spelled in 64 unsigned bits.
template <class Unsigned, class Operation>
struct Wrapping {
  using Word = Unsigned;
  static Word apply(Word accumulator, Word addend) noexcept {
    return static_cast<Word>(Operation{}(uint64_t{accumulator}, uint64_t{addend}));
  }
};

template <class Signed, bool kMax>
struct Extreme {
  using Word = Signed;
  static Word apply(Word accumulator, Word addend) noexcept {
    const bool take = kMax ? addend > accumulator : addend < accumulator;
    return take ? addend : accumulator;
  }
};

template <class Op>
void fold(uint8_t* __restrict accumulator, const uint8_t* __restrict addend,
          size_t elements) noexcept {
  using Word = typename Op::Word;
  for (size_t i = 0; i < elements; ++i) {
    Word left;
    Word right;
    std::memcpy(&left, accumulator + i * sizeof(Word), sizeof(Word));
    std::memcpy(&right, addend + i * sizeof(Word), sizeof(Word));
    left = Op::apply(left, right);
    std::memcpy(accumulator + i * sizeof(Word), &left, sizeof(Word));
  }
}

template <class Float>
void divide(uint8_t* accumulator, size_t elements, double divisor) noexcept {
  const auto by = static_cast<Float>(divisor);
  for (size_t i = 0; i < elements; ++i) {
    Float value;
    std::memcpy(&value, accumulator + i * sizeof value, sizeof value);
    value /= by;
    std::memcpy(accumulator + i * sizeof value, &value, sizeof value);
  }
}

template <class Float>
constexpr void fill_floats(Fold (&folds)[NF_OP_COUNT]) {
  folds[NF_OP_SUM] = folds[NF_OP_AVG] = fold<FloatArithmetic<Float, std::plus<>>>;
  folds[NF_OP_PRODUCT] = fold<FloatArithmetic<Float, std::multiplies<>>>;
  folds[NF_OP_MIN] = fold<FloatExtreme<Float, false>>;
  folds[NF_OP_MAX] = fold<FloatExtreme<Float, true>>;
}

template <class Integer>
constexpr void fill_integers(Fold (&folds)[NF_OP_COUNT]) {
  using Word = std::make_unsigned_t<Integer>;
  folds[NF_OP_SUM] = fold<Wrapping<Word, std::plus<>>>;
  folds[NF_OP_PRODUCT] = fold<Wrapping<Word, std::multiplies<>>>;
  folds[NF_OP_MIN] = fold<Extreme<Integer, false>>;
  folds[NF_OP_MAX] = fold<Extreme<Integer, true>>;
  folds[NF_OP_BAND] = fold<Wrapping<Word, std::bit_and<>>>;
  folds[NF_OP_BOR] = fold<Wrapping<Word, std::bit_or<>>>;
  folds[NF_OP_BXOR] = fold<Wrapping<Word, std::bit_xor<>>>;
}

constexpr void fill_bools(Fold (&folds)[NF_OP_COUNT]) {
  folds[NF_OP_SUM] = folds[NF_OP_MAX] = folds[NF_OP_BOR] = fold<Wrapping<uint8_t, std::bit_or<>>>;
  folds[NF_OP_PRODUCT] = folds[NF_OP_MIN] = folds[NF_OP_BAND] =
      fold<Wrapping<uint8_t, std::bit_and<>>>;
  folds[NF_OP_BXOR] = fold<Wrapping<uint8_t, std::bit_xor<>>>;
}

constexpr Kernels kKernels = [] {
  Kernels kernels{.divide_float32 = divide<float>, .divide_float64 = divide<double>};
  fill_floats<float>(kernels.folds[NF_DTYPE_FLOAT32]);
  fill_floats<double>(kernels.folds[NF_DTYPE_FLOAT64]);
  fill_integers<uint8_t>(kernels.folds[NF_DTYPE_UINT8]);
  fill_integers<int8_t>(kernels.folds[NF_DTYPE_INT8]);
  fill_integers<int16_t>(kernels.folds[NF_DTYPE_INT16]);
  fill_integers<int32_t>(kernels.folds[NF_DTYPE_INT32]);
  fill_integers<int64_t>(kernels.folds[NF_DTYPE_INT64]);
  fill_bools(kernels.folds[NF_DTYPE_BOOL]);
  return kernels;
}();

}  // namespace portable

#if NF_KERNELS_X86

// The ops of gradients by vectors, all others as the portable set has them.
template <class Set>
constexpr Kernels with_vectors(KernelSet name) {
  Kernels kernels = portable::kKernels;
  kernels.set = name;
  const auto fill = [](Fold(&folds)[NF_OP_COUNT], Fold sum, Fold min, Fold max) {
    folds[NF_OP_SUM] = sum;
    folds[NF_OP_MIN] = min;
    folds[NF_OP_MAX] = max;
  };
  fill(kernels.folds[NF_DTYPE_FLOAT32], Set::kFloat32Sum, Set::kFloat32Min, Set::kFloat32Max);
  fill(kernels.folds[NF_DTYPE_INT32], Set::kInt32Sum, Set::kInt32Min, Set::kInt32Max);
  fill(kernels.folds[NF_DTYPE_INT64], Set::kInt64Sum, Set::kInt64Min, Set::kInt64Max);
  kernels.folds[NF_DTYPE_FLOAT32][NF_OP_AVG] = Set::kFloat32Sum;
  kernels.divide_float32 = Set::kDivide;
  return kernels;
}

// ---- AVX2 ----

#define NF_TARGET __attribute__((target("avx2")))
#define NF_INLINE NF_TARGET __attribute__((always_inline)) static inline

namespace avx2 {

struct FloatSum {
  NF_INLINE __m256i apply(__m256i accumulator, __m256i addend) noexcept {
    // vaddps returns the NaN of its first operand. The intrinsic is an ordinary addition to the
    // compiler, which may swap the operands; assembly keeps their order.
    __m256 sum;
    __asm__("vaddps %2, %1, %0"
            : "=x"(sum)
            : "x"(_mm256_castsi256_ps(accumulator)), "x"(_mm256_castsi256_ps(addend)));
    return _mm256_castps_si256(sum);
  }
};

template <bool kMax>
struct FloatExtreme {
  NF_INLINE __m256i apply(__m256i accumulator, __m256i addend) noexcept {
    constexpr int kNotKept = kMax ? _CMP_NGE_UQ : _CMP_NLE_UQ;  // true where either is NaN
    const __m256 left = _mm256_castsi256_ps(accumulator);
    const __m256 right = _mm256_castsi256_ps(addend);
    const __m256 take =
        _mm256_and_ps(_mm256_cmp_ps(left, left, _CMP_ORD_Q), _mm256_cmp_ps(left, right, kNotKept));
    return _mm256_castps_si256(_mm256_blendv_ps(left, right, take));
  }
};

struct Sum32 {
  NF_INLINE __m256i apply(__m256i accumulator, __m256i addend) noexcept {
    return _mm256_add_epi32(accumulator, addend);
  }
};

struct Sum64 {
  NF_INLINE __m256i apply(__m256i accumulator, __m256i addend) noexcept {
    return _mm256_add_epi64(accumulator, addend);
  }
};

template <bool kMax>
struct Extreme32 {
  NF_INLINE __m256i apply(__m256i accumulator, __m256i addend) noexcept {
    return kMax ? _mm256_max_epi32(accumulator, addend) : _mm256_min_epi32(accumulator, addend);
  }
};

template <bool kMax>
struct Extreme64 {
  NF_INLINE __m256i apply(__m256i accumulator, __m256i addend) noexcept {
    const __m256i take =
        kMax ? _mm256_cmpgt_epi64(addend, accumulator) : _mm256_cmpgt_epi64(accumulator, addend);
    return _mm256_blendv_epi8(accumulator, addend, take);
  }
};

// Selects the first `words` (below 8) 32-bit lanes.
NF_INLINE __m256i first_lanes(size_t words) noexcept {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(words)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

template <class Op, size_t kElementBytes>
NF_TARGET void fold(uint8_t* accumulator, const uint8_t* addend, size_t elements) noexcept {
  const size_t size = elements * kElementBytes;
  const size_t whole = size & ~size_t{31};
#pragma GCC unroll 4
  for (size_t at = 0; at < whole; at += 32) {
    auto* const target = reinterpret_cast<__m256i*>(accumulator + at);
    const auto* const source = reinterpret_cast<const __m256i*>(addend + at);
    _mm256_storeu_si256(target, Op::apply(_mm256_loadu_si256(target), _mm256_loadu_si256(source)));
  }
  if (whole != size) {
    const __m256i lanes = first_lanes((size - whole) / 4);
    auto* const target = reinterpret_cast<int*>(accumulator + whole);
    const auto* const source = reinterpret_cast<const int*>(addend + whole);
    _mm256_maskstore_epi32(
        target, lanes,
        Op::apply(_mm256_maskload_epi32(target, lanes), _mm256_maskload_epi32(source, lanes)));
  }
}

NF_TARGET void divide(uint8_t* accumulator, size_t elements, double divisor) noexcept {
  const __m256 by = _mm256_set1_ps(static_cast<float>(divisor));
  const size_t whole = elements & ~size_t{7};
  auto* const values = reinterpret_cast<float*>(accumulator);
  for (size_t i = 0; i < whole; i += 8) {
    _mm256_storeu_ps(values + i, _mm256_div_ps(_mm256_loadu_ps(values + i), by));
  }
  if (whole != elements) {
    const __m256i lanes = first_lanes(elements - whole);
    _mm256_maskstore_ps(values + whole, lanes,
                        _mm256_div_ps(_mm256_maskload_ps(values + whole, lanes), by));
  }
}

struct Set {
  static constexpr Fold kFloat32Sum = fold<FloatSum, 4>;
  static constexpr Fold kFloat32Min = fold<FloatExtreme<false>, 4>;
  static constexpr Fold kFloat32Max = fold<FloatExtreme<true>, 4>;
  static constexpr Fold kInt32Sum = fold<Sum32, 4>;
  static constexpr Fold kInt32Min = fold<Extreme32<false>, 4>;
  static constexpr Fold kInt32Max = fold<Extreme32<true>, 4>;
  static constexpr Fold kInt64Sum = fold<Sum64, 8>;
  static constexpr Fold kInt64Min = fold<Extreme64<false>, 8>;
  static constexpr Fold kInt64Max = fold<Extreme64<true>, 8>;
  static constexpr Divide kDivide = divide;
};

constexpr Kernels kKernels = with_vectors<Set>(KernelSet::avx2);

}  // namespace avx2

#undef NF_INLINE
#undef NF_TARGET

// ---- AVX-512 ----

#define NF_TARGET __attribute__((target("avx512f")))
#define NF_INLINE NF_TARGET __attribute__((always_inline)) static inline

namespace avx512 {

struct FloatSum {
  NF_INLINE __m512i apply(__m512i accumulator, __m512i addend) noexcept {
    __m512 sum;  // assembly for the reason given above
    __asm__("vaddps %2, %1, %0"
            : "=v"(sum)
            : "v"(_mm512_castsi512_ps(accumulator)), "v"(_mm512_castsi512_ps(addend)));
    return _mm512_castps_si512(sum);
  }
};

template <bool kMax>
struct FloatExtreme {
  NF_INLINE __m512i apply(__m512i accumulator, __m512i addend) noexcept {
    constexpr int kNotKept = kMax ? _CMP_NGE_UQ : _CMP_NLE_UQ;  // true where either is NaN
    const __m512 left = _mm512_castsi512_ps(accumulator);
    const __m512 right = _mm512_castsi512_ps(addend);
    const __mmask16 number = _mm512_cmp_ps_mask(left, left, _CMP_ORD_Q);
    const __mmask16 take = _mm512_mask_cmp_ps_mask(number, left, right, kNotKept);
    return _mm512_mask_blend_epi32(take, accumulator, addend);
  }
};

struct Sum32 {
  NF_INLINE __m512i apply(__m512i accumulator, __m512i addend) noexcept {
    return _mm512_add_epi32(accumulator, addend);
  }
};

struct Sum64 {
  NF_INLINE __m512i apply(__m512i accumulator, __m512i addend) noexcept {
    return _mm512_add_epi64(accumulator, addend);
  }
};

// The masked forms, as GCC 12 warns that the plain ones read something uninitialised. The code is
// the same.
template <bool kMax>
struct Extreme32 {
  NF_INLINE __m512i apply(__m512i accumulator, __m512i addend) noexcept {
    constexpr auto kAll = static_cast<__mmask16>(-1);
    return kMax ? _mm512_maskz_max_epi32(kAll, accumulator, addend)
                : _mm512_maskz_min_epi32(kAll, accumulator, addend);
  }
};

template <bool kMax>
struct Extreme64 {
  NF_INLINE __m512i apply(__m512i accumulator, __m512i addend) noexcept {
    constexpr auto kAll = static_cast<__mmask8>(-1);
    return kMax ? _mm512_maskz_max_epi64(kAll, accumulator, addend)
                : _mm512_maskz_min_epi64(kAll, accumulator, addend);
  }
};

// Selects the first `words` (below 16) 32-bit lanes.
NF_INLINE __mmask16 first_lanes(size_t words) noexcept {
  return static_cast<__mmask16>((1U << words) - 1);
}

template <class Op, size_t kElementBytes>
NF_TARGET void fold(uint8_t* accumulator, const uint8_t* addend, size_t elements) noexcept {
  const size_t size = elements * kElementBytes;
  const size_t whole = size & ~size_t{63};
#pragma GCC unroll 4
  for (size_t at = 0; at < whole; at += 64) {
    uint8_t* const target = accumulator + at;
    _mm512_storeu_si512(target,
                        Op::apply(_mm512_loadu_si512(target), _mm512_loadu_si512(addend + at)));
  }
  if (whole != size) {
    const __mmask16 lanes = first_lanes((size - whole) / 4);
    uint8_t* const target = accumulator + whole;
    _mm512_mask_storeu_epi32(target, lanes,
                             Op::apply(_mm512_maskz_loadu_epi32(lanes, target),
                                       _mm512_maskz_loadu_epi32(lanes, addend + whole)));
  }
}

NF_TARGET void divide(uint8_t* accumulator, size_t elements, double divisor) noexcept {
  const __m512 by = _mm512_set1_ps(static_cast<float>(divisor));
  const size_t whole = elements & ~size_t{15};
  for (size_t i = 0; i < whole; i += 16) {
    uint8_t* const target = accumulator + 4 * i;
    _mm512_storeu_ps(target, _mm512_div_ps(_mm512_loadu_ps(target), by));
  }
  if (whole != elements) {
    const __mmask16 lanes = first_lanes(elements - whole);
    uint8_t* const target = accumulator + 4 * whole;
    _mm512_mask_storeu_ps(target, lanes, _mm512_div_ps(_mm512_maskz_loadu_ps(lanes, target), by));
  }
}

struct Set {
  static constexpr Fold kFloat32Sum = fold<FloatSum, 4>;
  static constexpr Fold kFloat32Min = fold<FloatExtreme<false>, 4>;
  static constexpr Fold kFloat32Max = fold<FloatExtreme<true>, 4>;
  static constexpr Fold kInt32Sum = fold<Sum32, 4>;
  static constexpr Fold kInt32Min = fold<Extreme32<false>, 4>;
  static constexpr Fold kInt32Max = fold<Extreme32<true>, 4>;
  static constexpr Fold kInt64Sum = fold<Sum64, 8>;
  static constexpr Fold kInt64Min = fold<Extreme64<false>, 8>;
  static constexpr Fold kInt64Max = fold<Extreme64<true>, 8>;
  static constexpr Divide kDivide = divide;
};

constexpr Kernels kKernels = with_vectors<Set>(KernelSet::avx512);

}  // namespace avx512

#undef NF_INLINE
#undef NF_TARGET

#endif  // NF_KERNELS_X86

// ---- choice ----

// nullptr where the CPU lacks the set.
const Kernels* kernels_of(KernelSet set) noexcept {
#if NF_KERNELS_X86
  __builtin_cpu_init();
  if (set == KernelSet::avx512) {
    return __builtin_cpu_supports("avx512f") ? &avx512::kKernels : nullptr;
  }
  if (set == KernelSet::avx2) return __builtin_cpu_supports("avx2") ? &avx2::kKernels : nullptr;
#endif
  return set == KernelSet::portable ? &portable::kKernels : nullptr;
}

std::atomic<const Kernels*> in_use{nullptr};  // until the first use

const Kernels& kernels() noexcept {
  const Kernels* current = in_use.load(std::memory_order_relaxed);
  if (current == nullptr) {
    const Kernels* const best = kernels_of(best_kernel_set());
    // Leaves the choice of a use_kernel_set() that came in between.
    if (in_use.compare_exchange_strong(current, best, std::memory_order_relaxed)) current = best;
  }
  return *current;
}

// nullptr where there is none.
Fold fold_of(const Kernels& of, uint8_t op, uint8_t dtype) noexcept {
  return op < NF_OP_COUNT && dtype < NF_DTYPE_COUNT ? of.folds[dtype][op] : nullptr;
}

}  // namespace

bool kernel_exists(uint8_t op, uint8_t dtype) noexcept {
  return fold_of(portable::kKernels, op, dtype) != nullptr;
}

void fold(uint8_t op, uint8_t dtype, uint8_t* accumulator, const uint8_t* addend,
          size_t elements) noexcept {
  const Fold kernel = fold_of(kernels(), op, dtype);
  if (kernel != nullptr) kernel(accumulator, addend, elements);
}

void finish(uint8_t op, uint8_t dtype, uint8_t* accumulator, size_t elements,
            uint32_t ranks) noexcept {
  if (op != NF_OP_AVG) return;
  if (dtype == NF_DTYPE_FLOAT32) kernels().divide_float32(accumulator, elements, ranks);
  if (dtype == NF_DTYPE_FLOAT64) kernels().divide_float64(accumulator, elements, ranks);
}

KernelSet best_kernel_set() noexcept {
  for (const KernelSet set : {KernelSet::avx512, KernelSet::avx2}) {
    if (kernels_of(set) != nullptr) return set;
  }
  return KernelSet::portable;
}

KernelSet kernel_set() noexcept {
  return kernels().set;
}

bool use_kernel_set(KernelSet set) noexcept {
  const Kernels* const chosen = kernels_of(set);
  if (chosen == nullptr) return false;
  in_use.store(chosen, std::memory_order_relaxed);
  return true;
}

const char* kernel_set_name(KernelSet set) noexcept {
  switch (set) {
    case KernelSet::portable:
      return "portable";
    case KernelSet::avx2:
      return "avx2";
    case KernelSet::avx512:
      return "avx512";
  }
  return "unknown";
}

}  // namespace netfold
