#include "core/kernels.h"

#include <atomic>
#include <bit>
#include <cstring>
#include <initializer_list>

#include "core/wire_constants.h"

#if defined(__x86_64__)
#define NF_KERNELS_X86 1
#include <immintrin.h>
#endif

namespace netfold {
namespace {

static_assert(std::endian::native == std::endian::little, "netfold runs on little-endian hosts");

using Fold = void (*)(uint8_t* accumulator, const uint8_t* addend, size_t elements) noexcept;
using Divide = void (*)(uint8_t* accumulator, size_t elements, float divisor) noexcept;

// The folds of one element type, by op.
struct Row {
  Fold sum;
  Fold min;
  Fold max;
};

struct Kernels {
  KernelSet set;
  Row float32;
  Row int32;
  Row int64;
  Divide divide;  // float32
};

// ---- portable: plain loops that the compiler may vectorise ----

namespace portable {

constexpr uint32_t kQuiet = 0x00400000;
constexpr uint32_t kInfinity = 0x7F800000;
constexpr uint32_t kDefaultNan = 0xFFC00000;  // x86's; other CPUs have others

constexpr bool is_nan(uint32_t bits) noexcept {
  return static_cast<int32_t>(bits & 0x7FFFFFFF) > static_cast<int32_t>(kInfinity);
}

// The elements as unsigned words. No branches, so that the compiler can vectorise the loop.
struct FloatSum {
  using Word = uint32_t;
  static Word apply(Word accumulator, Word addend) noexcept {
    const Word sum =
        std::bit_cast<Word>(std::bit_cast<float>(accumulator) + std::bit_cast<float>(addend));
    // Which NaN an addition returns depends on the CPU and on the compiler's order of operands.
    const Word second = is_nan(addend) ? addend | kQuiet : kDefaultNan;
    const Word nan = is_nan(accumulator) ? accumulator | kQuiet : second;
    return is_nan(sum) ? nan : sum;
  }
};

// Maps non-NaN floats to integers of the same order; -0 and +0 both become 0.
constexpr int32_t ordered(uint32_t bits) noexcept {
  const auto magnitude = static_cast<int32_t>(bits & 0x7FFFFFFF);
  return static_cast<int32_t>(bits) < 0 ? -magnitude : magnitude;
}

template <bool kMax>
struct FloatExtreme {
  using Word = uint32_t;
  static Word apply(Word accumulator, Word addend) noexcept {
    const int32_t old_rank = ordered(accumulator);
    const int32_t new_rank = ordered(addend);
    const bool better = kMax ? new_rank > old_rank : new_rank < old_rank;
    const bool take = (better | is_nan(addend)) & !is_nan(accumulator);
    return take ? addend : accumulator;
  }
};

template <class Unsigned>
struct Sum {
  using Word = Unsigned;
  static Word apply(Word accumulator, Word addend) noexcept { return accumulator + addend; }
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

void divide(uint8_t* accumulator, size_t elements, float divisor) noexcept {
  for (size_t i = 0; i < elements; ++i) {
    float value;
    std::memcpy(&value, accumulator + i * sizeof value, sizeof value);
    value /= divisor;
    std::memcpy(accumulator + i * sizeof value, &value, sizeof value);
  }
}

constexpr Kernels kKernels = {
    KernelSet::portable,
    {fold<FloatSum>, fold<FloatExtreme<false>>, fold<FloatExtreme<true>>},
    {fold<Sum<uint32_t>>, fold<Extreme<int32_t, false>>, fold<Extreme<int32_t, true>>},
    {fold<Sum<uint64_t>>, fold<Extreme<int64_t, false>>, fold<Extreme<int64_t, true>>},
    divide};

}  // namespace portable

#if NF_KERNELS_X86

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

NF_TARGET void divide(uint8_t* accumulator, size_t elements, float divisor) noexcept {
  const __m256 by = _mm256_set1_ps(divisor);
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

constexpr Kernels kKernels = {
    KernelSet::avx2,
    {fold<FloatSum, 4>, fold<FloatExtreme<false>, 4>, fold<FloatExtreme<true>, 4>},
    {fold<Sum32, 4>, fold<Extreme32<false>, 4>, fold<Extreme32<true>, 4>},
    {fold<Sum64, 8>, fold<Extreme64<false>, 8>, fold<Extreme64<true>, 8>},
    divide};

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

NF_TARGET void divide(uint8_t* accumulator, size_t elements, float divisor) noexcept {
  const __m512 by = _mm512_set1_ps(divisor);
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

constexpr Kernels kKernels = {
    KernelSet::avx512,
    {fold<FloatSum, 4>, fold<FloatExtreme<false>, 4>, fold<FloatExtreme<true>, 4>},
    {fold<Sum32, 4>, fold<Extreme32<false>, 4>, fold<Extreme32<true>, 4>},
    {fold<Sum64, 8>, fold<Extreme64<false>, 8>, fold<Extreme64<true>, 8>},
    divide};

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

const Row* row_of(const Kernels& of, uint8_t dtype) noexcept {
  switch (dtype) {
    case NF_DTYPE_FLOAT32:
      return &of.float32;
    case NF_DTYPE_INT32:
      return &of.int32;
    case NF_DTYPE_INT64:
      return &of.int64;
    default:
      return nullptr;
  }
}

// nullptr where there is none.
Fold fold_of(const Kernels& of, uint8_t op, uint8_t dtype) noexcept {
  const Row* const row = row_of(of, dtype);
  if (row == nullptr) return nullptr;
  switch (op) {
    case NF_OP_SUM:
      return row->sum;
    case NF_OP_AVG:
      return dtype == NF_DTYPE_FLOAT32 ? row->sum : nullptr;
    case NF_OP_MIN:
      return row->min;
    case NF_OP_MAX:
      return row->max;
    default:
      return nullptr;
  }
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
  if (op != NF_OP_AVG || dtype != NF_DTYPE_FLOAT32) return;
  kernels().divide(accumulator, elements, static_cast<float>(ranks));
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
