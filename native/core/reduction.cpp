#include "core/reduction.h"

#include <algorithm>

#include "core/fixed_point.h"
#include "core/packet.h"

namespace netfold {

uint64_t fingerprint_of(const Collective& what, uint8_t kind) {
  return pack_fingerprint(
      {.kind = kind,
       .op = what.op,
       .dtype = what.tensor_dtype,
       .mode = what.mode,
       .elements = what.tensor_elements != 0 ? what.tensor_elements : what.elements});
}

Reduction::Reduction(const Collective& what, uint32_t ranks, uint32_t payload_bytes)
    : what_(what),
      ranks_(ranks),
      payload_bytes_(payload_bytes),
      element_bytes_(nf_dtype_bytes(what.dtype)),
      fixed_(what.mode == NF_MODE_FIXED32) {
  if (!fixed_) {
    passes_[kValues] = pass_of(what.op, what.dtype, what.elements);
  } else {
    uint64_t const blocks = (what.elements + NF_FIXED_BLOCK_ELEMENTS - 1) / NF_FIXED_BLOCK_ELEMENTS;
    passes_[kHeads] = pass_of(NF_OP_MAX, NF_DTYPE_UINT8, blocks * NF_FIXED_HEAD_BYTES);
    passes_[kValues] = pass_of(NF_OP_SUM, NF_DTYPE_INT32, what.elements);
    heads_missing_ = passes_[kHeads].chunks;
    heads_known_.resize(heads_missing_);
    if (what.data != nullptr) heads_.resize(passes_[kHeads].elements);
  }
  chunks_ = passes_[kHeads].chunks + passes_[kValues].chunks;
}

Reduction::Pass Reduction::pass_of(uint8_t op, uint8_t dtype, uint64_t elements) const {
  uint32_t const per_chunk = payload_bytes_ / nf_dtype_bytes(dtype);
  return {.op = op,
          .dtype = dtype,
          .per_chunk = per_chunk,
          .elements = elements,
          .chunks = (elements + per_chunk - 1) / per_chunk};
}

Reduction::Place Reduction::place_of(uint64_t index) const {
  auto part = kHeads;
  while (index >= passes_[part].chunks && part != kClasses) {
    index -= passes_[part].chunks;
    part = static_cast<Part>(part + 1);
  }
  const Pass& pass = passes_[part];
  uint64_t const first = index * pass.per_chunk;
  uint64_t const left = pass.elements - first;
  return {.part = part,
          .in_part = index,
          .first = first,
          .elements = static_cast<uint16_t>(std::min<uint64_t>(pass.per_chunk, left))};
}

Reduction::Chunk Reduction::chunk(uint64_t index) const {
  Place const place = place_of(index);
  const Pass& pass = passes_[place.part];
  return {.op = pass.op,
          .dtype = pass.dtype,
          .elements = place.elements,
          .bytes = size_t{place.elements} * nf_dtype_bytes(pass.dtype)};
}

size_t Reduction::block_elements(uint64_t block) const {
  return std::min<uint64_t>(NF_FIXED_BLOCK_ELEMENTS,
                            what_.elements - block * NF_FIXED_BLOCK_ELEMENTS);
}

uint8_t* Reduction::block_values(uint64_t block) const {
  return what_.data + block * NF_FIXED_BLOCK_ELEMENTS * element_bytes_;
}

bool Reduction::can_send(uint64_t index) const {
  if (heads_missing_ == 0) return true;
  Place const place = place_of(index);
  if (place.part == kHeads) return true;
  auto const heads_of = [&](uint64_t element) {
    return element / NF_FIXED_BLOCK_ELEMENTS * NF_FIXED_HEAD_BYTES / passes_[kHeads].per_chunk;
  };
  for (uint64_t of = heads_of(place.first); of <= heads_of(place.first + place.elements - 1); ++of)
    if (!heads_known_[of]) return false;
  return true;
}

// Calls function(block, first element, elements) for the parts of blocks among a chunk's values.
template <typename Function>
void Reduction::each_block(const Place& place, Function function) const {
  uint64_t const end = place.first + place.elements;
  for (uint64_t at = place.first; at < end;) {
    uint64_t const block = at / NF_FIXED_BLOCK_ELEMENTS;
    uint64_t const next = std::min(end, (block + 1) * NF_FIXED_BLOCK_ELEMENTS);
    function(block, at, next - at);
    at = next;
  }
}

const uint8_t* Reduction::contribution(uint64_t index, uint8_t* staging) const {
  if (what_.data == nullptr) return nullptr;
  Place const place = place_of(index);
  if (!fixed_) return what_.data + place.first * element_bytes_;
  switch (place.part) {
    case kHeads:
      for (uint64_t i = 0; i < place.elements / NF_FIXED_HEAD_BYTES; ++i) {
        uint64_t const block = place.first / NF_FIXED_HEAD_BYTES + i;
        BlockHead const head = block_head(block_values(block), block_elements(block));
        staging[i * NF_FIXED_HEAD_BYTES] = head.exponent;
        staging[i * NF_FIXED_HEAD_BYTES + 1] = head.has_special;
      }
      break;
    case kValues:
      each_block(place, [&](uint64_t block, uint64_t first, size_t elements) {
        int const scale = fixed_scale(heads_[block * NF_FIXED_HEAD_BYTES], ranks_);
        quantise(what_.data + first * 4, elements, scale, staging + (first - place.first) * 4);
      });
      break;
    default:
      return classes_.data() + place.first;
  }
  return staging;
}

size_t Reduction::take(uint64_t index, const uint8_t* result) {
  Place const place = place_of(index);
  size_t const bytes = size_t{place.elements} * element_bytes_;
  bool const counted = result == nullptr || what_.data == nullptr;
  switch (place.part) {
    case kHeads:
      heads_known_[place.in_part] = true;
      heads_missing_ -= 1;
      if (!counted) take_heads(place, result);
      return 0;
    case kValues:
      if (counted) return bytes;
      if (!fixed_) {
        std::memcpy(what_.data + place.first * element_bytes_, result, bytes);
        return bytes;
      }
      each_block(place, [&](uint64_t block, uint64_t first, size_t elements) {
        int const scale = fixed_scale(heads_[block * NF_FIXED_HEAD_BYTES], ranks_);
        dequantise(result + (first - place.first) * 4, elements, scale,
                   what_.op == NF_OP_AVG ? ranks_ : 1, what_.data + first * 4);
      });
      return bytes;
    default:
      if (!counted) std::memcpy(classes_.data() + place.first, result, place.elements);
      return 0;
  }
}

void Reduction::take_heads(const Place& place, const uint8_t* result) {
  std::memcpy(heads_.data() + place.first, result, place.elements);
  for (uint64_t i = 0; i < place.elements / NF_FIXED_HEAD_BYTES; ++i) {
    if (result[i * NF_FIXED_HEAD_BYTES + 1] == 0) continue;
    // Read now: once values may go, their results overwrite the tensor.
    uint64_t const block = place.first / NF_FIXED_HEAD_BYTES + i;
    classify(block_values(block), block_elements(block), special_[block].data());
  }
  if (heads_missing_ != 0) return;
  for (const auto& [block, classes] : special_)
    classes_.insert(classes_.end(), classes.begin(), classes.end());
  passes_[kClasses] = pass_of(NF_OP_BOR, NF_DTYPE_UINT8, classes_.size());
  chunks_ += passes_[kClasses].chunks;
}

void Reduction::finish() {
  const uint8_t* classes = classes_.data();
  for (const auto& [block, unused] : special_) {
    apply_classes(classes, block_elements(block), block_values(block));
    classes += NF_FIXED_CLASS_BYTES;
  }
}

}  // namespace netfold
