// A UDP socket with what Linux offers to send and receive many packets by few system calls.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/types.h"
#include "io/system.h"

namespace netfold {

struct SocketOptions {
  size_t receive_buffer_bytes = 4 << 20;  // asked for; the kernel has its own limit
  size_t send_buffer_bytes = 4 << 20;
  bool offload = true;  // false: poll, recvmsg and sendmsg, one datagram each
  std::string device;   // interface to send from; empty: by route
};

struct SocketCounters {
  uint64_t receive_calls = 0;  // system calls
  uint64_t send_calls = 0;
  uint64_t receive_errors = 0;
  uint64_t send_errors = 0;   // messages the kernel would not send
  uint64_t send_too_big = 0;  // of these: larger than the path MTU has become
  uint64_t gso_refused = 0;   // UDP_SEGMENT failed when it was used; it is off since
  uint64_t port_refused = 0;  // ICMP said that nobody listens at the peer's port
};

// Packets to one destination that share a system call's overhead: all of `segment_bytes`, the last
// may be shorter. Parts point at what is sent; nothing is copied.
struct Message {
  static constexpr size_t kSegmentsMax = 64;  // UDP_MAX_SEGMENTS of the older kernels
  static constexpr size_t kBytesMax = 65'000;

  const Address* to = nullptr;  // null: the peer the socket is connected to
  size_t segment_bytes = 0;
  size_t bytes = 0;
  size_t segments = 0;
  size_t parts_used = 0;
  std::array<iovec, 2 * kSegmentsMax> parts;

  void clear(const Address* destination) noexcept;
  void append(const uint8_t* head, size_t head_bytes, const uint8_t* body,
              size_t body_bytes) noexcept;
};

// What one receive gave: packets of `segment_bytes`, the last may be shorter. Valid until the next.
struct Received {
  const uint8_t* bytes = nullptr;
  size_t size = 0;
  size_t segment_bytes = 0;
  Address from;  // of a bound socket, with the local address the packet came to
};

class UdpSocket {
 public:
  static constexpr size_t kReceiveBatch = 32;
  static constexpr size_t kSendBatch = 128;

  // `host` is numeric. Each throws std::system_error with what failed.
  [[nodiscard]] static UdpSocket connected(const std::string& host, uint16_t port,
                                           const SocketOptions& options);
  // Replies leave from the local address the packet came to; `::` serves IPv4 as well.
  [[nodiscard]] static UdpSocket bound(const std::string& host, uint16_t port,
                                       const SocketOptions& options);

  // A batch of what has arrived, at most kReceiveBatch; emptied(): there was no more.
  [[nodiscard]] std::span<const Received> receive();
  [[nodiscard]] bool emptied() const noexcept { return emptied_; }

  // Sends in order and returns how many messages are done with; the rest met a full send buffer.
  // A message the kernel refuses is counted and gone: to the protocol it is a lost packet.
  [[nodiscard]] size_t send(std::span<const Message> messages);

  void close() noexcept { descriptor_ = {}; }

  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }
  [[nodiscard]] bool gso() const noexcept { return gso_; }
  [[nodiscard]] bool gro() const noexcept { return gro_; }
  [[nodiscard]] bool ipv6() const noexcept { return family_ == AF_INET6; }
  [[nodiscard]] size_t receive_buffer_bytes() const;  // granted
  [[nodiscard]] size_t send_buffer_bytes() const;
  [[nodiscard]] size_t path_mtu() const;  // of a connected socket
  // What of a chunk fits into one packet of that path. Throws where nothing does.
  [[nodiscard]] uint16_t payload_bytes_max() const;
  // Where a bound socket can send to, as Received::from says it.
  [[nodiscard]] Address address_of(const std::string& host, uint16_t port) const;
  [[nodiscard]] uint16_t local_port() const;
  [[nodiscard]] std::string local() const;  // "address:port"
  [[nodiscard]] std::string peer() const;
  [[nodiscard]] const SocketCounters& counters() const noexcept { return counters_; }

 private:
  struct Buffers;  // of receive()
  struct Deleter {
    void operator()(Buffers* buffers) const noexcept;
  };

  UdpSocket(int family, const SocketOptions& options);

  void set(int level, int option, int value, const char* what);
  [[nodiscard]] int get(int level, int option, const char* what) const;
  size_t receive_many();
  size_t receive_singly();
  bool count_receive_error(int error);
  int send_some(std::span<const Message> messages, size_t* sent);
  int send_many(std::span<const Message> messages, size_t* sent);
  int send_one(const Message& message);
  int send_singly(const Message& message);

  FileDescriptor descriptor_;
  int family_;
  bool offload_;
  bool gso_ = false;
  bool gro_ = false;
  bool emptied_ = false;
  size_t batch_ = kReceiveBatch;  // what the next receive() takes
  SocketCounters counters_;
  std::unique_ptr<Buffers, Deleter> buffers_;
};

}  // namespace netfold
