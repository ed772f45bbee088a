// Moves packets between a socket and an engine, and keeps the engine's timers. No threads, no
// locks.
#pragma once

#include <algorithm>

#include "io/outbox.h"

namespace netfold {

template <class Engine>
class Pump {
 public:
  Pump(Engine* engine, UdpSocket* socket) : engine_(engine), socket_(socket), outbox_(socket) {}

  // What has arrived (one batch at most), then what is due, then what there is to send.
  void turn() {
    const Nanos now = monotonic_now();
    const std::span<const Received> batch = socket_->receive();
    for (const Received& received : batch) split(now, received);
    more_ = !socket_->emptied();
    full_turns_ = more_ ? full_turns_ + 1 : 0;
    // Silence is judged only after everything that lay in the receive buffer, for this process may
    // have been stopped meanwhile; a flood must not hold back the timers for ever, though.
    send();
    const bool caught_up = !more_ || full_turns_ >= kFullTurnsMax;
    if (!caught_up || engine_->poll_timeout() > now) return;
    engine_->handle_timeout(now);
    send();
  }

  // After a command to the engine.
  void send() {
    outbox_.resume();
    outbox_.drain(engine_, monotonic_now());
  }

  // When the next turn is due if nothing arrives.
  [[nodiscard]] Nanos due() const { return more_ ? 0 : engine_->poll_timeout(); }
  [[nodiscard]] bool wants_to_write() const { return outbox_.blocked(); }
  [[nodiscard]] uint64_t short_datagrams() const { return short_datagrams_; }
  [[nodiscard]] const OutboxCounters& outbox() const { return outbox_.counters(); }

 private:
  static constexpr size_t kFullTurnsMax =
      1024;  // some receive buffers full of the smallest packets

  void split(Nanos now, const Received& received) {
    size_t at = 0;
    do {
      const size_t size = std::min(received.segment_bytes, received.size - at);
      deliver(now, received.from, received.bytes + at, size);
      at += size;
    } while (at < received.size);
  }

  void deliver(Nanos now, const Address& from, const uint8_t* bytes, size_t size) {
    if (size < NF_HEADER_BYTES) {
      ++short_datagrams_;
      return;
    }
    const size_t payload_bytes = size - NF_HEADER_BYTES;
    const Datagram datagram{bytes, payload_bytes > 0 ? bytes + NF_HEADER_BYTES : nullptr,
                            payload_bytes};
    if constexpr (requires { engine_->handle_packet(now, from, datagram); }) {
      engine_->handle_packet(now, from, datagram);
    } else {
      engine_->handle_packet(now, datagram);
    }
  }

  Engine* engine_;
  UdpSocket* socket_;
  Outbox outbox_;
  bool more_ = false;
  size_t full_turns_ = 0;
  uint64_t short_datagrams_ = 0;
};

}  // namespace netfold
