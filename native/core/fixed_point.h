// fixed32: float32 as integers that share an exponent by block (docs/numbers.md).
//
// A block of values with |x| <= 2^e is sent as round(x * 2^s), s = 30 - ceil(log2(ranks)) - e. No
// sum of `ranks` such integers leaves 31 bits, and every step but one rounding up and one down is
// exact, so the outcome depends neither on the order of adding nor on where it happens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/wire_constants.h"

namespace netfold {

// What a block's owner tells of it before it may be sent: NF_FIXED_HEAD_BYTES on the wire, reduced
// with MAX over all ranks.
struct BlockHead {
  uint8_t exponent = 0;     // e + NF_FIXED_EXPONENT_BIAS; 0 for a block of zeros
  uint8_t has_special = 0;  // 1: NaN or an infinity is among the values
};

// Values are little-endian float32 at any alignment; a block has at most NF_FIXED_BLOCK_ELEMENTS.
[[nodiscard]] BlockHead block_head(const uint8_t* values, size_t elements) noexcept;

// The power s of two that values of a block are multiplied with.
[[nodiscard]] int fixed_scale(uint8_t exponent, uint32_t ranks) noexcept;

// int32 of each value, rounded to nearest, ties to even; 0 for NaN and infinities.
void quantise(const uint8_t* values, size_t elements, int scale, uint8_t* integers) noexcept;

// float32 of each sum of integers, divided by `divisor`, rounded once from double precision.
void dequantise(const uint8_t* integers, size_t elements, int scale, uint32_t divisor,
                uint8_t* values) noexcept;

// Two bits an element: 1 for +inf, 2 for -inf, both for NaN, so that BOR over all ranks is what
// their sum is. Writes NF_FIXED_CLASS_BYTES.
void classify(const uint8_t* values, size_t elements, uint8_t* classes) noexcept;

// Overwrites the elements that have a class with +inf, -inf or NaN (0x7FC00000).
void apply_classes(const uint8_t* classes, size_t elements, uint8_t* values) noexcept;

}  // namespace netfold
