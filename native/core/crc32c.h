// CRC32C (Castagnoli), initial value and final xor 0xFFFFFFFF. It guards every packet.
#pragma once

#include <cstddef>
#include <cstdint>

namespace netfold {

// Incremental: crc32c(b, size_b, crc32c(a, size_a)) is the CRC of a followed by b.
// Uses the CPU's CRC32C instruction where there is one (x86 with SSE4.2 and PCLMULQDQ).
[[nodiscard]] uint32_t crc32c(const uint8_t* bytes, size_t size, uint32_t previous = 0) noexcept;

// The same result by table look-up, on any CPU.
[[nodiscard]] uint32_t crc32c_portable(const uint8_t* bytes, size_t size,
                                       uint32_t previous = 0) noexcept;

}  // namespace netfold
