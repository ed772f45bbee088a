#include "core/slots.h"

#include <cstring>

#include "core/kernels.h"

namespace netfold {
namespace {

constexpr size_t kCacheLine = 64;

constexpr uint64_t stride_of(uint64_t payload) {
  return (payload + kCacheLine - 1) & ~uint64_t{kCacheLine - 1};
}

// Floating-point sums depend on the order, so they are folded in rank order (DESIGN invariant 4).
constexpr bool needs_order(uint8_t dtype) {
  return dtype == NF_DTYPE_FLOAT32 || dtype == NF_DTYPE_FLOAT64;
}

}  // namespace

uint64_t Slots::memory_bytes(uint64_t window, uint64_t children, uint64_t payload) {
  return window * (2 + children) * stride_of(payload);
}

void Slots::open(size_t window, size_t children, size_t payload_bytes) {
  children_ = children;
  stride_ = stride_of(payload_bytes);
  // So much more that every sum starts on a cache line. Untouched pages cost nothing.
  sums_ = std::make_unique_for_overwrite<uint8_t[]>(window * 2 * stride_ + kCacheLine);
  auto const start =
      (reinterpret_cast<uintptr_t>(sums_.get()) + kCacheLine - 1) & ~uintptr_t{kCacheLine - 1};
  slots_ = std::vector<Slot>(window);
  for (size_t i = 0; i < window * 2; ++i)
    slots_[i / 2].sums[i % 2] = reinterpret_cast<uint8_t*>(start) + i * stride_;
}

void Slots::close() {
  slots_.clear();
  sums_.reset();
}

void Slots::replace(Slot* slot, uint32_t index, const uint8_t* payload) {
  SlotVersion& version = slot->versions[index];
  version.final = true;
  std::memcpy(slot->sums[index], payload, version.bytes());
}

void Slots::add(Slot* slot, uint32_t index, uint16_t child, const uint8_t* payload) {
  SlotVersion& version = slot->versions[index];
  if (version.final) return;
  uint8_t* const sum = slot->sums[index];
  auto const put = [&](const uint8_t* elements) {
    if (version.added++ == 0)
      std::memcpy(sum, elements, version.bytes());
    else
      fold(version.op, version.dtype, sum, elements, version.elements);
  };
  if (!needs_order(version.dtype)) return put(payload);
  if (child != version.fold_next) {
    if (slot->early == nullptr)
      slot->early = std::make_unique_for_overwrite<uint8_t[]>(children_ * stride_);
    std::memcpy(slot->early.get() + child * stride_, payload, version.bytes());
    slot->early_children |= bit_of(child);
    return;
  }
  put(payload);
  version.fold_next += 1;
  while (version.fold_next < children_ && (slot->early_children >> version.fold_next & 1)) {
    put(slot->early.get() + version.fold_next * stride_);
    version.fold_next += 1;
  }
}

}  // namespace netfold
