// Engines joined back to back without a network in between: the shortest path a gradient can take.
#include <algorithm>
#include <vector>

#include "core/switch.h"
#include "core/worker.h"
#include "tests/check.h"

using namespace netfold;

namespace {

constexpr Key kKey{1, 2};

struct Room {  // one switch, some workers, and a clock that the test turns
  Nanos now = 0;
  Switch aggregator;
  std::vector<Worker> workers;

  explicit Room(uint16_t size, SwitchConfig config = {}) : aggregator(config, 0) {
    for (uint16_t rank = 0; rank < size; ++rank) {
      WorkerConfig worker;
      worker.job = "test";
      worker.incarnation = 7;
      worker.key = kKey;
      worker.nonce = 100U + rank;
      worker.rank = rank;
      worker.size = size;
      workers.emplace_back(worker, 0);
    }
  }

  static Address address_of(size_t rank) {
    Address address;
    address.bytes[0] = static_cast<uint8_t>(rank);
    address.size = 1;
    return address;
  }

  static Datagram datagram(const Transmit& transmit, std::vector<uint8_t>* bytes) {
    bytes->assign(transmit.head, transmit.head + transmit.head_bytes);
    if (transmit.payload_bytes > 0)
      bytes->insert(bytes->end(), transmit.payload, transmit.payload + transmit.payload_bytes);
    return {bytes->data(), bytes->data() + NF_HEADER_BYTES, bytes->size() - NF_HEADER_BYTES};
  }

  // Delivers until nobody has anything to say at this instant.
  void drain() {
    std::vector<uint8_t> bytes;
    Transmit transmit;
    for (bool busy = true; busy;) {
      busy = false;
      for (size_t rank = 0; rank < workers.size(); ++rank)
        while (workers[rank].poll_transmit(now, &transmit)) {
          busy = true;
          aggregator.handle_packet(now, address_of(rank), datagram(transmit, &bytes));
        }
      while (aggregator.poll_transmit(now, &transmit)) {
        busy = true;
        Datagram const packet = datagram(transmit, &bytes);
        for (size_t bit = 0; bit < 64; ++bit)
          if (transmit.receivers >> bit & 1)
            workers[transmit.addresses[bit].bytes[0]].handle_packet(now, packet);
      }
    }
  }
};

bool next_event(Worker* worker, WorkerEvent::Kind kind, WorkerEvent* event) {
  while (worker->poll_event(event))
    if (event->kind == kind) return true;
  return false;
}

void test_float_sum_is_a_left_fold_in_rank_order() {
  Room room(3);
  room.drain();
  std::vector<std::vector<float>> tensors(3, std::vector<float>(100'001));
  for (size_t i = 0; i < tensors[0].size(); ++i) {
    tensors[0][i] = 1e8F;
    tensors[1][i] = static_cast<float>(i) * 0.3F;
    tensors[2][i] = -1e8F;
  }
  auto const inputs = tensors;
  for (size_t rank : {2U, 0U, 1U}) {  // rank 2 comes first
    CHECK(room.workers[rank].state() == WorkerState::active);
    Collective what;
    what.data = reinterpret_cast<uint8_t*>(tensors[rank].data());
    what.elements = tensors[rank].size();
    CHECK(room.workers[rank].submit(room.now, what) == 1);
    room.drain();
  }
  for (size_t rank = 0; rank < 3; ++rank) {
    WorkerEvent event{};
    CHECK(next_event(&room.workers[rank], WorkerEvent::Kind::completed, &event));
    CHECK(event.ok && event.bytes_done == tensors[0].size() * 4);
    for (size_t i = 0; i < tensors[0].size(); ++i)
      CHECK(tensors[rank][i] == (inputs[0][i] + inputs[1][i]) + inputs[2][i]);
  }
  for (Worker& worker : room.workers) worker.leave(room.now);
  room.drain();
  room.now += kSecond;
  room.aggregator.handle_timeout(room.now);
  CHECK(room.aggregator.counters().groups_open == 0);
  CHECK(room.aggregator.counters().memory_bytes == 0);
}

void test_a_disagreeing_rank_breaks_the_group_for_all() {
  Room room(2);
  room.drain();
  std::vector<int32_t> tensors[2] = {std::vector<int32_t>(10, 1), std::vector<int32_t>(11, 1)};
  for (size_t rank = 0; rank < 2; ++rank) {
    Collective what;
    what.data = reinterpret_cast<uint8_t*>(tensors[rank].data());
    what.elements = tensors[rank].size();
    what.dtype = NF_DTYPE_INT32;
    what.mode = NF_MODE_EXACT;
    room.workers[rank].submit(room.now, what);
  }
  room.drain();
  room.now += kSecond;
  for (Worker& worker : room.workers) worker.handle_timeout(room.now);
  room.drain();
  for (Worker& worker : room.workers) {
    WorkerEvent event{};
    CHECK(next_event(&worker, WorkerEvent::Kind::completed, &event));
    CHECK(!event.ok);
    CHECK(worker.breakage().cause == NF_CAUSE_MISMATCH);
    CHECK(unpack_fingerprint(worker.breakage().fingerprint_a).elements == 10);
    CHECK(unpack_fingerprint(worker.breakage().fingerprint_b).elements == 11);
  }
}

void test_a_silent_member_is_gone_after_the_lease() {
  Room room(3);
  room.drain();
  std::vector<float> tensors[2] = {std::vector<float>(1000), std::vector<float>(1000)};
  for (size_t rank = 0; rank < 2; ++rank) {
    Collective what;
    what.data = reinterpret_cast<uint8_t*>(tensors[rank].data());
    what.elements = 1000;
    room.workers[rank].submit(room.now, what);
  }
  // Rank 2 is never called again.
  std::vector<uint8_t> bytes;
  Transmit transmit;
  Nanos const started = room.now;
  while (room.workers[0].state() != WorkerState::broken && room.now < started + 7 * kSecond) {
    room.now += 50 * kMillisecond;
    room.aggregator.handle_timeout(room.now);
    for (size_t rank = 0; rank < 2; ++rank) room.workers[rank].handle_timeout(room.now);
    for (size_t rank = 0; rank < 2; ++rank)
      while (room.workers[rank].poll_transmit(room.now, &transmit))
        room.aggregator.handle_packet(room.now, Room::address_of(rank),
                                      Room::datagram(transmit, &bytes));
    while (room.aggregator.poll_transmit(room.now, &transmit)) {
      Datagram const packet = Room::datagram(transmit, &bytes);
      for (size_t bit = 0; bit < 2; ++bit)
        if (transmit.receivers >> bit & 1) room.workers[bit].handle_packet(room.now, packet);
    }
  }
  CHECK(room.now - started <= 5'500 * kMillisecond);
  for (size_t rank = 0; rank < 2; ++rank) {
    WorkerEvent event{};
    CHECK(next_event(&room.workers[rank], WorkerEvent::Kind::completed, &event) && !event.ok);
    CHECK(room.workers[rank].breakage().cause == NF_CAUSE_GONE);
    CHECK(room.workers[rank].breakage().ranks == 4);
  }
}

// As a driver would that always sends before it looks at timers: with nothing pending, only
// heartbeats are due.
void test_a_dead_switch_is_noticed_by_idle_workers() {
  Room room(2);
  room.drain();
  Worker& worker = room.workers[0];
  Transmit transmit;
  Nanos const started = room.now;
  while (worker.state() == WorkerState::active && room.now < started + 20 * kSecond) {
    room.now = std::max(room.now, worker.poll_timeout());
    while (worker.poll_transmit(room.now, &transmit)) continue;
    if (worker.poll_timeout() <= room.now) worker.handle_timeout(room.now);
  }
  CHECK(worker.breakage().cause == NF_CAUSE_AGGREGATOR_LOST);
  CHECK(room.now - started <= 5'100 * kMillisecond);
}

// Stopped for longer than the lease, then called again by the same driver.
void test_a_worker_that_was_stopped_does_not_blame_the_switch() {
  Room room(2);
  room.drain();
  room.now += 60 * kSecond;
  Worker& worker = room.workers[0];
  Transmit transmit;
  while (worker.poll_transmit(room.now, &transmit)) continue;
  if (worker.poll_timeout() <= room.now) worker.handle_timeout(room.now);
  CHECK(worker.state() == WorkerState::active);
}

}  // namespace

int main() {
  test_a_dead_switch_is_noticed_by_idle_workers();
  test_a_worker_that_was_stopped_does_not_blame_the_switch();
  test_float_sum_is_a_left_fold_in_rank_order();
  test_a_disagreeing_rank_breaks_the_group_for_all();
  test_a_silent_member_is_gone_after_the_lease();
}
