// The arithmetic of the aggregator: folds one rank's elements into an accumulator.
//
// Every kernel set gives the same bits on every CPU:
// - float32 and float64 SUM, AVG and PRODUCT are IEEE operations, element by element. Where the
//   accumulator is NaN the outcome is that NaN made quiet, else where the addend is NaN that one
//   made quiet; opposite infinities, and infinity times 0, give the negative quiet NaN without a
//   payload (0xFFC00000 in float32).
// - their MIN and MAX: an accumulator that is NaN stays, else an addend that is NaN is taken,
//   else the smaller (greater) of the two; equals, -0 and +0 among them, keep the accumulator.
//   Elements are taken bit for bit.
// - integers wrap.
// - bool is or (SUM, MAX, BOR), and (PRODUCT, MIN, BAND), or xor of bytes that are 0 or 1.
// This holds in the CPU's default floating-point mode (no flush to zero), which nothing here sets.
#pragma once

#include <cstddef>
#include <cstdint>

namespace netfold {

// True where the engine can reduce this pair: every op but AVG for integers and bool; SUM, AVG,
// PRODUCT, MIN and MAX for float32 and float64.
[[nodiscard]] bool kernel_exists(uint8_t op, uint8_t dtype) noexcept;

// accumulator[i] = accumulator[i] (op) addend[i]. Elements are little-endian; pointers need no
// alignment; the two must not overlap. Does nothing where no kernel exists.
void fold(uint8_t op, uint8_t dtype, uint8_t* accumulator, const uint8_t* addend,
          size_t elements) noexcept;

// What remains when the contributions of all `ranks` (at least 1) are in: AVG divides by their
// number (an IEEE division), other ops need nothing.
void finish(uint8_t op, uint8_t dtype, uint8_t* accumulator, size_t elements,
            uint32_t ranks) noexcept;

enum class KernelSet : uint8_t { portable, avx2, avx512 };

// The fastest set this CPU has, detected at run time; portable on anything but x86-64.
[[nodiscard]] KernelSet best_kernel_set() noexcept;

// The set in use: the best one unless use_kernel_set() chose another.
[[nodiscard]] KernelSet kernel_set() noexcept;

// Switches every thread to `set`; false, and no change, where the CPU lacks it. For tests.
bool use_kernel_set(KernelSet set) noexcept;

[[nodiscard]] const char* kernel_set_name(KernelSet set) noexcept;

}  // namespace netfold
