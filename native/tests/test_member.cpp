// Members with shards, joined in memory by addresses of two bytes.
#include "core/member.h"

#include <bit>
#include <vector>

#include "tests/check.h"

namespace {

using namespace netfold;

constexpr uint16_t kSize = 3;

Address address_of(uint8_t host) {
  Address address;
  address.size = 2;
  address.bytes[0] = host;
  return address;
}

Datagram datagram_of(const std::vector<uint8_t>& bytes) {
  const size_t payload = bytes.size() - NF_HEADER_BYTES;
  return {bytes.data(), payload > 0 ? bytes.data() + NF_HEADER_BYTES : nullptr, payload};
}

struct Sent {
  uint8_t from;
  uint8_t to;
  std::vector<uint8_t> bytes;
};

struct Room {
  Nanos now = 0;
  std::vector<Member> members;

  Room() {
    std::vector<Aggregator> aggregators;
    for (uint16_t rank = 0; rank < kSize; ++rank) {
      MemberConfig config;
      config.worker.rank = rank;
      config.worker.size = kSize;
      config.worker.first_request = 1000u * rank;
      config.worker.nonce = rank;
      config.has_shard = true;
      config.shard.first_stream = 100u * rank + 1;
      members.emplace_back(config, now);
      aggregators.push_back({.address = address_of(static_cast<uint8_t>(rank)),
                             .payload_bytes_max = 1024,
                             .window_max = 8,
                             .host_rank = rank});
    }
    for (Member& member : members) member.connect(now, aggregators);
  }

  std::vector<Sent> poll(uint8_t rank) {
    std::vector<Sent> sent;
    Transmit transmit;
    while (members[rank].poll_transmit(now, &transmit))
      for (uint64_t left = transmit.receivers; left != 0; left &= left - 1) {
        std::vector<uint8_t> bytes(transmit.head, transmit.head + transmit.head_bytes);
        bytes.insert(bytes.end(), transmit.payload, transmit.payload + transmit.payload_bytes);
        sent.push_back({rank, transmit.addresses[std::countr_zero(left)].bytes[0], bytes});
      }
    return sent;
  }

  void deliver(const Sent& sent) {
    members[sent.to].handle_packet(now, address_of(sent.from), datagram_of(sent.bytes));
  }

  void drain() {
    for (bool more = true; more;) {
      more = false;
      for (uint8_t rank = 0; rank < kSize; ++rank)
        for (const Sent& sent : poll(rank)) {
          deliver(sent);
          more = true;
        }
    }
  }
};

// A Hello that comes between a result and its sending turns nothing to where it came from.
void test_a_stranger_gets_a_cookie_only() {
  Room room;
  room.drain();
  std::vector<std::vector<float>> tensors(kSize, std::vector<float>(3000, 1.0F));
  for (uint16_t rank = 0; rank < kSize; ++rank) {
    CHECK(room.members[rank].state() == WorkerState::active);
    Collective what;
    what.data = reinterpret_cast<uint8_t*>(tensors[rank].data());
    what.elements = tensors[rank].size();
    room.members[rank].submit(room.now, what);
  }
  constexpr uint8_t kServes = 2;
  for (uint8_t rank = 0; rank < kServes; ++rank)
    for (const Sent& sent : room.poll(rank))
      if (sent.to == kServes) room.deliver(sent);
  Header hello;
  hello.type = NF_TYPE_HELLO;
  hello.dtype = NF_DTYPE_UINT8;
  hello.elements = kHelloBytes;
  std::vector<uint8_t> bytes(NF_HEADER_BYTES + kHelloBytes);
  encode_header(hello, bytes.data());
  seal_packet(bytes.data(), bytes.data() + NF_HEADER_BYTES, kHelloBytes, nullptr);
  constexpr uint8_t kStranger = 77;
  room.deliver({kStranger, kServes, bytes});
  size_t results = 0;
  size_t cookies = 0;
  for (const Sent& sent : room.poll(kServes)) {
    const uint8_t type = sent.bytes[NF_OFFSET_TYPE];
    if (type == NF_TYPE_RESULT) results += sent.to == 0;
    if (sent.to != kStranger) continue;
    CHECK(type == NF_TYPE_COOKIE);
    cookies += 1;
  }
  CHECK(cookies == 1);
  CHECK(results > 0);
}

}  // namespace

int main() {
  test_a_stranger_gets_a_cookie_only();
  return 0;
}
