#include "io/socket.h"

#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

// Absent from the headers of older C libraries; the kernel is asked at run time.
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace netfold {
namespace {

constexpr size_t kReceiveBytesMax =
    65'536;  // the largest datagram, and the largest GRO super-packet
// What one receive() takes should still be in the cache when it is processed.
constexpr size_t kReceiveBytesWanted = 256 << 10;
constexpr size_t kReceiveBatchMin = 4;
constexpr int kEcnCapable = 2;        // ECT(0) in the two ECN bits of TOS or traffic class
constexpr int kReceiveErrorsMax = 4;  // in a row: pending ICMP errors before what has arrived

union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

constexpr size_t kControlBytes =
    CMSG_SPACE(sizeof(in6_pktinfo)) + CMSG_SPACE(sizeof(in_pktinfo)) + CMSG_SPACE(sizeof(int));

struct alignas(cmsghdr) Control {
  uint8_t bytes[kControlBytes];
};

// An Address is the remote socket address followed by the local IP address.
static_assert(sizeof(sockaddr_in6) + sizeof(in6_addr) <= Address::kBytesMax);

size_t socket_address_bytes(bool ipv6) {
  return ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

SocketAddress parse_address(const std::string& host, uint16_t port, socklen_t* bytes) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    throw_system_error(EINVAL, "not a numeric IPv4 or IPv6 address: " + host);
  }
  SocketAddress address{};
  std::memcpy(&address, found->ai_addr, found->ai_addrlen);
  *bytes = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

std::string print_address(const SocketAddress& address, socklen_t bytes) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(&address.any, bytes, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  std::string result(host);
  if (address.any.sa_family == AF_INET6) result = '[' + result + ']';
  result += ':';
  return result += port;
}

template <class T>
void add_control(msghdr* header, int level, int type, const T& value) {
  auto* control = reinterpret_cast<cmsghdr*>(static_cast<uint8_t*>(header->msg_control) +
                                             header->msg_controllen);
  control->cmsg_level = level;
  control->cmsg_type = type;
  control->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(control), &value, sizeof value);
  header->msg_controllen += CMSG_SPACE(sizeof value);
}

// Whom the message goes to and from which of our addresses it leaves.
void address_message(const Address& to, bool ipv6, msghdr* header, SocketAddress* name) {
  const size_t name_bytes = socket_address_bytes(ipv6);
  std::memcpy(name, to.bytes, name_bytes);
  header->msg_name = name;
  header->msg_namelen = static_cast<socklen_t>(name_bytes);
  if (ipv6) {
    in6_pktinfo from{};
    std::memcpy(&from.ipi6_addr, to.bytes + name_bytes, sizeof from.ipi6_addr);
    add_control(header, IPPROTO_IPV6, IPV6_PKTINFO, from);
  } else {
    in_pktinfo from{};
    std::memcpy(&from.ipi_spec_dst, to.bytes + name_bytes, sizeof from.ipi_spec_dst);
    add_control(header, IPPROTO_IP, IP_PKTINFO, from);
  }
}

void fill_header(const Message& message, bool ipv6, msghdr* header, SocketAddress* name,
                 Control* control) {
  *header = {};
  header->msg_iov = const_cast<iovec*>(message.parts.data());
  header->msg_iovlen = message.parts_used;
  header->msg_control = control->bytes;
  if (message.to != nullptr) address_message(*message.to, ipv6, header, name);
  if (message.segments > 1) {
    add_control(header, SOL_UDP, UDP_SEGMENT, static_cast<uint16_t>(message.segment_bytes));
  }
  if (header->msg_controllen == 0) header->msg_control = nullptr;
}

void read_control(const cmsghdr* control, Received* out) {
  const auto read = [control](auto* value) {
    std::memcpy(value, CMSG_DATA(control), sizeof *value);
  };
  const auto append_local = [out](const void* address, size_t bytes) {
    std::memcpy(out->from.bytes + out->from.size, address, bytes);
    out->from.size = static_cast<uint8_t>(out->from.size + bytes);
  };
  if (control->cmsg_level == SOL_UDP && control->cmsg_type == UDP_GRO) {
    int segment_bytes = 0;
    read(&segment_bytes);
    if (segment_bytes > 0) out->segment_bytes = static_cast<size_t>(segment_bytes);
  } else if (control->cmsg_level == IPPROTO_IPV6 && control->cmsg_type == IPV6_PKTINFO) {
    in6_pktinfo to{};
    read(&to);
    append_local(&to.ipi6_addr, sizeof to.ipi6_addr);
  } else if (control->cmsg_level == IPPROTO_IP && control->cmsg_type == IP_PKTINFO) {
    in_pktinfo to{};
    read(&to);
    append_local(&to.ipi_spec_dst, sizeof to.ipi_spec_dst);
  }
}

}  // namespace

void Message::clear(const Address* destination) noexcept {
  to = destination;
  segment_bytes = 0;
  bytes = 0;
  segments = 0;
  parts_used = 0;
}

void Message::append(const uint8_t* head, size_t head_bytes, const uint8_t* body,
                     size_t body_bytes) noexcept {
  if (segments == 0) segment_bytes = head_bytes + body_bytes;
  parts[parts_used++] = {const_cast<uint8_t*>(head), head_bytes};
  if (body_bytes > 0) parts[parts_used++] = {const_cast<uint8_t*>(body), body_bytes};
  bytes += head_bytes + body_bytes;
  ++segments;
}

struct UdpSocket::Buffers {
  std::unique_ptr<uint8_t[]> bytes{new uint8_t[kReceiveBatch * kReceiveBytesMax]};
  std::array<mmsghdr, kReceiveBatch> headers{};
  std::array<iovec, kReceiveBatch> parts{};
  std::array<SocketAddress, kReceiveBatch> names{};
  std::array<Control, kReceiveBatch> controls{};
  std::array<Received, kReceiveBatch> received{};

  // The kernel overwrites these fields, so they are set again before every use.
  void prepare(size_t i) {
    parts[i] = {bytes.get() + i * kReceiveBytesMax, kReceiveBytesMax};
    headers[i] = {};
    headers[i].msg_hdr.msg_name = &names[i];
    headers[i].msg_hdr.msg_namelen = sizeof names[i];
    headers[i].msg_hdr.msg_iov = &parts[i];
    headers[i].msg_hdr.msg_iovlen = 1;
    headers[i].msg_hdr.msg_control = controls[i].bytes;
    headers[i].msg_hdr.msg_controllen = sizeof controls[i].bytes;
  }

  void finish(size_t i, size_t size) {
    msghdr& header = headers[i].msg_hdr;
    Received& out = received[i];
    out.bytes = bytes.get() + i * kReceiveBytesMax;
    out.size = size;
    out.segment_bytes = size;
    out.from = {};
    out.from.size = static_cast<uint8_t>(std::min<size_t>(header.msg_namelen, sizeof names[i]));
    std::memcpy(out.from.bytes, &names[i], out.from.size);
    for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
         control = CMSG_NXTHDR(&header, control)) {
      read_control(control, &out);
    }
  }
};

void UdpSocket::Deleter::operator()(Buffers* buffers) const noexcept {
  delete buffers;
}

UdpSocket::UdpSocket(int family, const SocketOptions& options)
    : descriptor_(socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_UDP)),
      family_(family),
      offload_(options.offload),
      buffers_(new Buffers) {
  if (descriptor() < 0) throw_system_error(errno, "cannot open a UDP socket");
  if (!options.device.empty() &&
      setsockopt(descriptor(), SOL_SOCKET, SO_BINDTODEVICE, options.device.data(),
                 static_cast<socklen_t>(options.device.size())) != 0) {
    throw_system_error(errno, "cannot send from the interface " + options.device);
  }
  set(SOL_SOCKET, SO_RCVBUF, static_cast<int>(options.receive_buffer_bytes), "SO_RCVBUF");
  set(SOL_SOCKET, SO_SNDBUF, static_cast<int>(options.send_buffer_bytes), "SO_SNDBUF");
  // The IPv4 options also count for IPv4 traffic through a dual-stack IPv6 socket.
  set(IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO, "IP_MTU_DISCOVER");
  set(IPPROTO_IP, IP_TOS, kEcnCapable, "IP_TOS");
  if (ipv6()) {
    set(IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO, "IPV6_MTU_DISCOVER");
    set(IPPROTO_IPV6, IPV6_TCLASS, kEcnCapable, "IPV6_TCLASS");
  }
  if (!offload_) return;
  const int off = 0;
  const int on = 1;
  gso_ = setsockopt(descriptor(), SOL_UDP, UDP_SEGMENT, &off, sizeof off) == 0;
  gro_ = setsockopt(descriptor(), SOL_UDP, UDP_GRO, &on, sizeof on) == 0;
}

UdpSocket UdpSocket::connected(const std::string& host, uint16_t port,
                               const SocketOptions& options) {
  socklen_t bytes = 0;
  const SocketAddress peer = parse_address(host, port, &bytes);
  UdpSocket result(peer.any.sa_family, options);
  if (connect(result.descriptor(), &peer.any, bytes) != 0) {
    throw_system_error(errno, "cannot reach " + print_address(peer, bytes));
  }
  return result;
}

UdpSocket UdpSocket::bound(const std::string& host, uint16_t port, const SocketOptions& options) {
  socklen_t bytes = 0;
  const SocketAddress local = parse_address(host, port, &bytes);
  UdpSocket result(local.any.sa_family, options);
  if (result.ipv6()) {
    result.set(IPPROTO_IPV6, IPV6_V6ONLY, 0, "IPV6_V6ONLY");
    result.set(IPPROTO_IPV6, IPV6_RECVPKTINFO, 1, "IPV6_RECVPKTINFO");
  } else {
    result.set(IPPROTO_IP, IP_PKTINFO, 1, "IP_PKTINFO");
  }
  if (bind(result.descriptor(), &local.any, bytes) != 0) {
    throw_system_error(errno, "cannot listen at " + print_address(local, bytes));
  }
  return result;
}

void UdpSocket::set(int level, int option, int value, const char* what) {
  if (setsockopt(descriptor(), level, option, &value, sizeof value) != 0) {
    throw_system_error(errno, what);
  }
}

int UdpSocket::get(int level, int option, const char* what) const {
  int value = 0;
  socklen_t bytes = sizeof value;
  if (getsockopt(descriptor(), level, option, &value, &bytes) != 0) {
    throw_system_error(errno, what);
  }
  return value;
}

size_t UdpSocket::receive_buffer_bytes() const {
  return static_cast<size_t>(get(SOL_SOCKET, SO_RCVBUF, "SO_RCVBUF"));
}

size_t UdpSocket::send_buffer_bytes() const {
  return static_cast<size_t>(get(SOL_SOCKET, SO_SNDBUF, "SO_SNDBUF"));
}

uint16_t UdpSocket::payload_bytes_max() const {
  const size_t overhead = NF_HEADER_BYTES + (ipv6() ? NF_UDP_IPV6_BYTES : NF_UDP_IPV4_BYTES);
  const size_t fits = path_mtu() > overhead ? (path_mtu() - overhead) / 8 * 8 : 0;
  if (fits == 0) throw_system_error(EMSGSIZE, "the path MTU is too small");
  return static_cast<uint16_t>(std::min<size_t>(fits, NF_PAYLOAD_BYTES_MAX));
}

size_t UdpSocket::path_mtu() const {
  return static_cast<size_t>(ipv6() ? get(IPPROTO_IPV6, IPV6_MTU, "IPV6_MTU")
                                    : get(IPPROTO_IP, IP_MTU, "IP_MTU"));
}

// The local address is left to the kernel.
Address UdpSocket::address_of(const std::string& host, uint16_t port) const {
  socklen_t bytes = 0;
  const SocketAddress remote = parse_address(host, port, &bytes);
  if (remote.any.sa_family != family_) {
    throw_system_error(EAFNOSUPPORT,
                       "cannot reach " + print_address(remote, bytes) + " from " + local());
  }
  Address address;
  std::memcpy(address.bytes, &remote, bytes);
  address.size = static_cast<uint8_t>(bytes + (ipv6() ? sizeof(in6_addr) : sizeof(in_addr)));
  return address;
}

uint16_t UdpSocket::local_port() const {
  SocketAddress address{};
  socklen_t bytes = sizeof address;
  if (getsockname(descriptor(), &address.any, &bytes) != 0) {
    throw_system_error(errno, "getsockname");
  }
  return ntohs(ipv6() ? address.v6.sin6_port : address.v4.sin_port);
}

std::string UdpSocket::local() const {
  SocketAddress address{};
  socklen_t bytes = sizeof address;
  if (getsockname(descriptor(), &address.any, &bytes) != 0) return "?";
  return print_address(address, bytes);
}

std::string UdpSocket::peer() const {
  SocketAddress address{};
  socklen_t bytes = sizeof address;
  if (getpeername(descriptor(), &address.any, &bytes) != 0) return "?";
  return print_address(address, bytes);
}

std::span<const Received> UdpSocket::receive() {
  const size_t count = offload_ ? receive_many() : receive_singly();
  const std::span<const Received> result(buffers_->received.data(), count);
  emptied_ = count < batch_;
  size_t largest = 1;
  for (const Received& received : result) largest = std::max(largest, received.size);
  batch_ = std::clamp(kReceiveBytesWanted / largest, kReceiveBatchMin, kReceiveBatch);
  return result;
}

size_t UdpSocket::receive_many() {
  for (size_t i = 0; i < batch_; ++i) buffers_->prepare(i);
  for (int errors = 0; errors < kReceiveErrorsMax;) {
    ++counters_.receive_calls;
    const int got =
        recvmmsg(descriptor(), buffers_->headers.data(), static_cast<unsigned>(batch_), 0, nullptr);
    if (got >= 0) {
      const auto count = static_cast<size_t>(got);
      for (size_t i = 0; i < count; ++i) buffers_->finish(i, buffers_->headers[i].msg_len);
      return count;
    }
    if (!count_receive_error(errno)) return 0;
    ++errors;
  }
  return 0;
}

size_t UdpSocket::receive_singly() {
  size_t count = 0;
  for (int errors = 0; count < batch_ && errors < kReceiveErrorsMax;) {
    buffers_->prepare(count);
    ++counters_.receive_calls;
    const ssize_t got = recvmsg(descriptor(), &buffers_->headers[count].msg_hdr, 0);
    if (got >= 0) {
      buffers_->finish(count++, static_cast<size_t>(got));
    } else {
      if (!count_receive_error(errno)) break;
      ++errors;
    }
  }
  return count;
}

// False: there is nothing to receive. Other errors were an ICMP message's, and are gone now.
bool UdpSocket::count_receive_error(int error) {
  if (error == EAGAIN || error == EWOULDBLOCK) return false;
  if (error == ECONNREFUSED) {
    ++counters_.port_refused;
  } else if (error != EINTR) {
    ++counters_.receive_errors;
  }
  return true;
}

size_t UdpSocket::send(std::span<const Message> messages) {
  size_t done = 0;
  size_t retried = messages.size();
  while (done < messages.size()) {
    size_t sent = 0;
    const int error = send_some(messages.subspan(done), &sent);
    done += sent;
    if (error == 0 || error == EINTR) continue;
    if (error == EAGAIN || error == EWOULDBLOCK) break;
    if (error == ECONNREFUSED && retried != done) {
      // An earlier packet's: this one was not even tried.
      ++counters_.port_refused;
      retried = done;
    } else if ((error == EIO || error == EINVAL) && gso_ && messages[done].segments > 1) {
      gso_ = false;  // a device or a tunnel on the route cannot do it
      ++counters_.gso_refused;
    } else {
      ++counters_.send_errors;
      if (error == EMSGSIZE) ++counters_.send_too_big;
      ++done;
    }
  }
  return done;
}

int UdpSocket::send_some(std::span<const Message> messages, size_t* sent) {
  if (messages.front().segments > 1 && !gso_) {
    const int error = send_singly(messages.front());
    *sent = error == 0 ? 1 : 0;
    return error;
  }
  if (offload_) return send_many(messages, sent);
  const int error = send_one(messages.front());
  *sent = error == 0 ? 1 : 0;
  return error;
}

int UdpSocket::send_many(std::span<const Message> messages, size_t* sent) {
  std::array<mmsghdr, kSendBatch> headers;
  std::array<SocketAddress, kSendBatch> names;
  std::array<Control, kSendBatch> controls;
  size_t count = 0;
  for (const Message& message : messages.first(std::min(messages.size(), kSendBatch))) {
    if (message.segments > 1 && !gso_) break;
    fill_header(message, ipv6(), &headers[count].msg_hdr, &names[count], &controls[count]);
    ++count;
  }
  ++counters_.send_calls;
  const int result = sendmmsg(descriptor(), headers.data(), static_cast<unsigned>(count), 0);
  if (result < 0) return errno;
  *sent = static_cast<size_t>(result);
  return 0;
}

int UdpSocket::send_one(const Message& message) {
  msghdr header;
  SocketAddress name;
  Control control;
  fill_header(message, ipv6(), &header, &name, &control);
  ++counters_.send_calls;
  return sendmsg(descriptor(), &header, 0) < 0 ? errno : 0;
}

// Segment by segment, what was put together before it was known that the kernel cannot take it.
int UdpSocket::send_singly(const Message& message) {
  for (size_t part = 0; part < message.parts_used;) {
    Message single;
    single.clear(message.to);
    while (part < message.parts_used && single.bytes < message.segment_bytes) {
      const iovec& next = message.parts[part++];
      single.parts[single.parts_used++] = next;
      single.bytes += next.iov_len;
    }
    single.segments = 1;
    const int error = send_one(single);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace netfold
