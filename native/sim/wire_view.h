// Reads header fields of a datagram without the codec under test.
#pragma once

#include <span>

#include "core/types.h"

namespace netfold {

class WireView {
 public:
  explicit WireView(std::span<const uint8_t> datagram) : bytes_(datagram) {}

  [[nodiscard]] uint8_t type() const { return bytes_[NF_OFFSET_TYPE]; }
  [[nodiscard]] uint32_t stream() const { return static_cast<uint32_t>(read(NF_OFFSET_STREAM, 4)); }
  [[nodiscard]] uint64_t chunk() const { return read(NF_OFFSET_CHUNK, 8); }
  [[nodiscard]] uint64_t bitmap() const { return read(NF_OFFSET_BITMAP, 8); }
  [[nodiscard]] uint16_t rank() const { return static_cast<uint16_t>(read(NF_OFFSET_RANK, 2)); }
  [[nodiscard]] uint16_t ranks() const { return static_cast<uint16_t>(read(NF_OFFSET_RANKS, 2)); }
  [[nodiscard]] uint32_t counter() const {
    return static_cast<uint32_t>(read(NF_OFFSET_COUNTER, 4));
  }
  [[nodiscard]] uint32_t collective() const {
    return static_cast<uint32_t>(read(NF_OFFSET_COLLECTIVE, 4));
  }
  [[nodiscard]] uint64_t word(size_t index) const { return read(index * 8, 8); }
  [[nodiscard]] size_t payload_bytes() const { return bytes_.size() - NF_HEADER_BYTES; }

 private:
  [[nodiscard]] uint64_t read(size_t offset, size_t size) const {
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) value = value << 8 | bytes_[offset + i];
    return value;
  }

  std::span<const uint8_t> bytes_;
};

}  // namespace netfold
