// Integers in network byte order, read and written at any alignment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace netfold {

template <typename Integer>
void store_be(uint8_t* bytes, Integer value) noexcept {
  for (size_t i = sizeof(Integer); i-- > 0;) {
    bytes[i] = static_cast<uint8_t>(value);
    value = static_cast<Integer>(static_cast<uint64_t>(value) >> 8);
  }
}

template <typename Integer>
[[nodiscard]] Integer load_be(const uint8_t* bytes) noexcept {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) value = value << 8 | bytes[i];
  return static_cast<Integer>(value);
}

// Appends fields to a buffer that its caller made large enough.
class ByteWriter {
 public:
  explicit ByteWriter(uint8_t* bytes) noexcept : start_(bytes), at_(bytes) {}
  template <typename Integer>
  void put(Integer value) noexcept {
    store_be(at_, value);
    at_ += sizeof(Integer);
  }
  [[nodiscard]] uint8_t* at() const noexcept { return at_; }
  void skip(size_t bytes) noexcept { at_ += bytes; }
  [[nodiscard]] size_t size() const noexcept { return static_cast<size_t>(at_ - start_); }

 private:
  uint8_t* start_;
  uint8_t* at_;
};

// Takes fields from bytes of the network: reading past the end yields zeros and ok() is false.
class ByteReader {
 public:
  ByteReader(const uint8_t* bytes, size_t size) noexcept : at_(bytes), left_(size) {}
  template <typename Integer>
  void get(Integer* value) noexcept {
    const uint8_t* bytes = take(sizeof(Integer));
    *value = bytes == nullptr ? Integer{} : load_be<Integer>(bytes);
  }
  // `size` bytes, or null where fewer are left.
  [[nodiscard]] const uint8_t* take(size_t size) noexcept {
    if (left_ < size) {
      ok_ = false;
      left_ = 0;
      return nullptr;
    }
    const uint8_t* bytes = at_;
    at_ += size;
    left_ -= size;
    return bytes;
  }
  [[nodiscard]] bool ok_and_empty() const noexcept { return ok_ && left_ == 0; }

 private:
  const uint8_t* at_;
  size_t left_;
  bool ok_ = true;
};

}  // namespace netfold
