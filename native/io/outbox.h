// Packs what an engine wants to send into few large messages, and keeps what did not fit in the
// socket's send buffer.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "io/socket.h"

namespace netfold {

struct OutboxCounters {
  uint64_t packets_deferred = 0;  // copied because the send buffer was full
  uint64_t packets_dropped = 0;   // the copies were at their limit, too
};

class Outbox {
 public:
  explicit Outbox(UdpSocket* socket);

  // Takes everything `engine` has to send. Nothing points into the engine afterwards.
  template <class Engine>
  void drain(Engine* engine, Nanos now) {
    while (fill(engine, now)) send();
  }

  // Goes on with what was kept; to be called when the socket has room again.
  void resume();
  [[nodiscard]] bool blocked() const noexcept { return !deferred_.empty(); }
  [[nodiscard]] const OutboxCounters& counters() const noexcept { return counters_; }

 private:
  struct Deferred {
    bool to_peer = false;
    Address to;
    size_t segment_bytes = 0;
    std::vector<uint8_t> bytes;
  };

  // Takes what fills one message to each receiver: they start on it while we make the next, and
  // what was just sealed is still in the cache when the kernel copies it.
  template <class Engine>
  bool fill(Engine* engine, Nanos now) {
    batch_used_ = 0;
    for (size_t bytes = 0, last = 0;
         batch_used_ < batch_.size() && bytes + last <= Message::kBytesMax; bytes += last) {
      Transmit& next = batch_[batch_used_];
      if (!engine->poll_transmit(now, &next)) break;
      ++batch_used_;
      last = next.head_bytes + next.payload_bytes;
    }
    return batch_used_ > 0;
  }

  void send();
  void append(const Address* to, const Transmit& transmit);
  [[nodiscard]] Message* open_message(const Address* to, size_t bytes);
  [[nodiscard]] bool fits(const Message& message, size_t bytes) const;
  void flush();
  void defer(const Message& message);

  static constexpr size_t kDeferredBytesMax = 4 << 20;

  UdpSocket* socket_;
  std::vector<Transmit> batch_;  // the first batch_used_ are to be sent
  size_t batch_used_ = 0;
  std::vector<Message> messages_;  // the first used_ are being filled
  size_t used_ = 0;
  std::array<uint8_t, 256> newest_{};  // by hash of the destination's pointer: index in messages_
  std::deque<Deferred> deferred_;
  size_t deferred_bytes_ = 0;
  OutboxCounters counters_;
};

}  // namespace netfold
