// Bodies of control messages: fixed layouts in network byte order (docs/protocol.md, "Control").
#pragma once

#include <string>
#include <vector>

#include "core/packet.h"

namespace netfold {

inline constexpr size_t kHelloBytes = 8;
inline constexpr size_t kJobNameBytesMax = 64;

// Where each slot of a lane is: number of the chunk that it waits for / window, modulo 4. Ranks are
// at most one window apart on a slot, so this tells who is behind.
class Phases {
 public:
  static constexpr size_t kBytes = NF_WINDOW_MAX / 4;
  [[nodiscard]] uint8_t of(size_t slot) const { return bytes_[slot / 4] >> slot % 4 * 2 & 3; }
  void set(size_t slot, uint64_t phase) {
    auto const shift = slot % 4 * 2;
    bytes_[slot / 4] = static_cast<uint8_t>((bytes_[slot / 4] & ~(3U << shift)) |
                                            static_cast<unsigned>(phase & 3) << shift);
  }
  [[nodiscard]] uint8_t* bytes() { return bytes_; }
  [[nodiscard]] const uint8_t* bytes() const { return bytes_; }

 private:
  uint8_t bytes_[kBytes] = {};
};

struct CookieBody {
  uint64_t cookie = 0;
};

struct JoinBody {
  uint64_t cookie = 0;
  Key key{};
  uint64_t incarnation = 0;  // of the job, drawn by its rank 0
  uint64_t nonce = 0;        // of this engine: a second one with the same rank is refused
  uint64_t group = 0;
  uint64_t secret_tag = 0;  // SipHash under the operator's secret, over this body with 0 here
  uint16_t size = 0;        // members of the group
  uint16_t payload_bytes_max = 0;
  uint16_t window_max = 0;
  // Of a worker that comes again: the epoch it was in, and where it is.
  uint32_t epoch = 0;
  Phases phases;
  std::string job;
};

struct JoinedBody {
  bool settled = false;  // false: still waiting for the ranks not in `joined`
  uint16_t payload_bytes = 0;
  uint16_t window = 0;
  uint16_t node = 0;
  uint32_t stream = 0;
  uint32_t epoch = 0;
  uint64_t first_chunk = 0;
  uint64_t joined = 0;
  Phases phases;  // of an epoch after the first: of the one who is farthest behind
};

struct RefusedBody {
  uint8_t reason = 0;
  uint8_t version = NF_VERSION;  // the aggregator's
  uint16_t detail = 0;           // of size_differs and secret (wire.toml)
};

// Why a group is broken: announced to all members, and what every error is made of.
struct Breakage {
  uint8_t cause = 0;        // NF_CAUSE_*
  uint64_t ranks = 0;       // gone: the dead; timeout, abort: who gave up; mismatch: both
  uint64_t added = 0;       // of the oldest chunk that was incomplete, who had contributed
  uint64_t chunk = 0;       // that chunk
  uint32_t epoch = 0;       // in which it happened
  uint32_t collective = 0;  // the collective that chunk belongs to, or that timed out
  uint16_t rank_a = 0;      // mismatch: the first contributor and what it believed
  uint16_t rank_b = 0;
  uint32_t collective_a = 0;
  uint32_t collective_b = 0;
  uint64_t fingerprint_a = 0;
  uint64_t fingerprint_b = 0;
};

// Each encode returns the bytes written to `out`, which holds kControlBytesMax; each decode says
// whether `bytes` was a well-formed body.
size_t encode(const CookieBody& body, uint8_t* out) noexcept;
size_t encode(const JoinBody& body, uint8_t* out) noexcept;
size_t encode(const JoinedBody& body, uint8_t* out) noexcept;
size_t encode(const RefusedBody& body, uint8_t* out) noexcept;
size_t encode(const Breakage& body, uint8_t* out) noexcept;
[[nodiscard]] bool decode(const uint8_t* bytes, size_t size, CookieBody* body) noexcept;
[[nodiscard]] bool decode(const uint8_t* bytes, size_t size, JoinBody* body);
[[nodiscard]] bool decode(const uint8_t* bytes, size_t size, JoinedBody* body) noexcept;
[[nodiscard]] bool decode(const uint8_t* bytes, size_t size, RefusedBody* body) noexcept;
[[nodiscard]] bool decode(const uint8_t* bytes, size_t size, Breakage* body) noexcept;

// What a Join proves of the operator's secret.
[[nodiscard]] uint64_t secret_tag(const JoinBody& body, const Key& secret) noexcept;

}  // namespace netfold
