// Endpoints and a switch over real UDP on the loopback interface, all in one process.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <system_error>

#include "io/endpoint.h"
#include "io/switch_server.h"
#include "tests/check.h"

namespace netfold {
namespace {

constexpr size_t kManyElements = 3'000'001;  // more than a window, and no whole number of chunks

EndpointOptions options_for(uint16_t port, uint16_t rank, uint16_t size) {
  EndpointOptions options;
  options.host = "127.0.0.1";
  options.port = port;
  options.worker.job = "test";
  options.worker.incarnation = 7;
  options.worker.key = {1, 2};
  options.worker.group = 3;
  options.worker.rank = rank;
  options.worker.size = size;
  options.worker.payload_bytes_max = 0;
  return options;
}

std::string join_group(Endpoint* endpoint) {
  std::string verdict = "waiting";
  while (verdict == "waiting") verdict = endpoint->join(kSecond);
  return verdict;
}

int wait_for(Endpoint* endpoint, uint64_t sequence) {
  int status = 0;
  while (status == 0) status = endpoint->wait(sequence, kNever);
  return status;
}

uint64_t submit(Endpoint* endpoint, std::vector<float>* data, bool deferred) {
  Collective collective;
  collective.data = reinterpret_cast<uint8_t*>(data->data());
  collective.elements = data->size();
  return endpoint->submit(collective, kNever, deferred);
}

// What `rank` contributes: small integers, so that float sums are exact.
std::vector<float> contribution(size_t elements, size_t rank) {
  std::vector<float> data(elements);
  for (size_t i = 0; i < elements; ++i) data[i] = static_cast<float>((i + rank) % 1000);
  return data;
}

bool is_sum(const std::vector<float>& data, size_t ranks) {
  for (size_t i = 0; i < data.size(); ++i) {
    size_t sum = 0;
    for (size_t rank = 0; rank < ranks; ++rank) sum += (i + rank) % 1000;
    if (data[i] != static_cast<float>(sum)) return false;
  }
  return true;
}

// Runs `body(rank)` in one thread per rank.
template <class Body>
void on_all_ranks(uint16_t size, const Body& body) {
  std::vector<std::thread> threads;
  for (uint16_t rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

using Group = std::vector<std::unique_ptr<Endpoint>>;

Group open_group(
    uint16_t port, uint16_t size,
    const std::function<void(EndpointOptions*)>& adjust = [](EndpointOptions*) {}) {
  Group group(size);
  on_all_ranks(size, [&](uint16_t rank) {
    EndpointOptions options = options_for(port, rank, size);
    adjust(&options);
    group[rank] = std::make_unique<Endpoint>(options);
    CHECK(join_group(group[rank].get()) == "settled");
  });
  return group;
}

void check_all_reduce(const Group& group, size_t elements, bool deferred) {
  on_all_ranks(static_cast<uint16_t>(group.size()), [&](uint16_t rank) {
    std::vector<float> data = contribution(elements, rank);
    const uint64_t sequence = submit(group[rank].get(), &data, deferred);
    CHECK(wait_for(group[rank].get(), sequence) == 1);
    CHECK(is_sum(data, group.size()));
    CHECK(group[rank]->bytes_done(sequence) == elements * sizeof(float));
    group[rank]->release(sequence);
  });
}

// No switch: every member runs a shard. The same sums, and all go although none has left before.
void test_shards(bool offload, uint16_t size) {
  Group group(size);
  std::vector<AggregatorPlace> places;
  for (uint16_t rank = 0; rank < size; ++rank) {
    EndpointOptions options = options_for(0, rank, size);
    options.has_shard = true;
    options.socket.offload = offload;
    group[rank] = std::make_unique<Endpoint>(options);
    places.push_back({"127.0.0.1", group[rank]->port(), rank});
  }
  for (const auto& endpoint : group) endpoint->connect(places);
  on_all_ranks(size, [&](uint16_t rank) { CHECK(join_group(group[rank].get()) == "settled"); });
  for (const size_t elements : {size_t{1}, size_t{2000}, kManyElements})
    check_all_reduce(group, elements, true);
  on_all_ranks(size, [&](uint16_t rank) { group[rank]->close(5 * kSecond); });
  for (const auto& endpoint : group) CHECK(endpoint->state() == "closed");
}

void test_all_reduce(const std::string& listen, const std::string& host, bool offload,
                     uint16_t size) {
  SwitchServerOptions options;
  options.host = listen;
  options.socket.offload = offload;
  SwitchServer server(options);
  const Group group = open_group(server.port(), size, [&](EndpointOptions* of_rank) {
    of_rank->host = host;
    of_rank->socket.offload = offload;
  });
  for (const size_t elements : {size_t{1}, size_t{256}, size_t{4099}, kManyElements}) {
    check_all_reduce(group, elements, true);
    check_all_reduce(group, elements, false);
  }
  const Report path = group[0]->path();
  CHECK(std::get<uint64_t>(path.at("payload_bytes")) == NF_PAYLOAD_BYTES_MAX);
  if (!offload) CHECK(!std::get<bool>(path.at("gso")) && !std::get<bool>(path.at("gro")));
  for (const auto& endpoint : group) endpoint->close(kSecond);
  CHECK(server.counters().at("groups_open") == 0);
}

// Several collectives in flight, several threads waiting on one endpoint, in any order.
void test_many_waiters() {
  SwitchServer server({});
  const Group group = open_group(server.port(), 2);
  on_all_ranks(2, [&](uint16_t rank) {
    Endpoint* endpoint = group[rank].get();
    std::vector<std::vector<float>> tensors(4);
    std::vector<uint64_t> sequences;
    for (std::vector<float>& tensor : tensors) {
      tensor = contribution(kManyElements / 4, rank);
      sequences.push_back(submit(endpoint, &tensor, false));
    }
    for (const uint64_t sequence : sequences) endpoint->watch(sequence);
    std::vector<std::thread> waiters;
    for (size_t i = tensors.size(); i-- > 0;) {
      waiters.emplace_back([&, i] {
        CHECK(wait_for(endpoint, sequences[i]) == 1);
        CHECK(is_sum(tensors[i], 2));
      });
    }
    std::vector<uint64_t> told;
    while (told.size() < tensors.size()) {
      for (const uint64_t sequence : endpoint->next_watched(kSecond)) told.push_back(sequence);
    }
    for (std::thread& waiter : waiters) waiter.join();
    CHECK(told == sequences);
    endpoint->release(sequences[0]);
    bool forgotten = false;
    try {
      (void)endpoint->test(sequences[0]);
    } catch (const UnknownSequence&) {
      forgotten = true;
    }
    CHECK(forgotten);
  });
}

// The I/O thread's heartbeats keep a group alive whatever the application does.
void test_heartbeats_while_idle() {
  SwitchServerOptions options;
  options.engine.lease = 400 * kMillisecond;
  SwitchServer server(options);
  const Group group = open_group(server.port(), 2, [](EndpointOptions* of_rank) {
    of_rank->worker.lease = 400 * kMillisecond;
    of_rank->worker.heartbeat = 80 * kMillisecond;
  });
  check_all_reduce(group, 256, true);
  usleep(1'200'000);
  CHECK(!group[0]->failure());
  check_all_reduce(group, 256, true);
}

// The one that goes silent is named within a lease and a second; here it never contributes.
void test_leaving_ends_what_others_wait_for() {
  SwitchServer server({});
  const Group group = open_group(server.port(), 3);
  std::vector<float> data(256, 1.0F);
  const uint64_t sequence = submit(group[0].get(), &data, false);
  group[2]->close(kSecond);
  CHECK(group[2]->state() == "closed");
  CHECK(wait_for(group[0].get(), sequence) == 2);
  CHECK(group[0]->failure()->cause == NF_CAUSE_GONE);
  CHECK(group[0]->failure()->ranks == 4);
}

void test_close_is_idempotent_and_ends_waiting() {
  SwitchServer server({});
  const Group group = open_group(server.port(), 2);
  std::vector<float> data(256, 1.0F);
  Endpoint* endpoint = group[0].get();
  const uint64_t sequence = submit(endpoint, &data, true);
  std::thread waiter([&] { CHECK(wait_for(endpoint, sequence) == 2); });
  std::thread watcher([&] {
    while (endpoint->state() != "closed") CHECK(endpoint->next_watched(kSecond).empty());
  });
  usleep(50'000);
  std::thread other([&] { endpoint->close(kSecond); });
  endpoint->close(kSecond);
  endpoint->close(0);
  other.join();
  waiter.join();
  watcher.join();
  CHECK(endpoint->state() == "closed");
  CHECK(endpoint->failure()->cause == NF_CAUSE_ABORT);
  CHECK(endpoint->counters().at("collectives_failed") == 1);
}

void test_stop_breaks_groups() {
  SwitchServer server({});
  const Group group = open_group(server.port(), 2);
  std::vector<float> data(256, 1.0F);
  const uint64_t sequence = submit(group[0].get(), &data, false);
  const Nanos before = monotonic_now();
  server.stop();
  CHECK(monotonic_now() - before < kSecond);
  CHECK(server.wait(kSecond));
  CHECK(wait_for(group[0].get(), sequence) == 2);
  CHECK(group[0]->failure()->cause == NF_CAUSE_DRAIN);
}

void test_drain_ends_with_the_last_group() {
  SwitchServer server({});
  const Group group = open_group(server.port(), 2);
  server.drain();
  check_all_reduce(group, 256, true);
  for (const auto& endpoint : group) endpoint->close(kSecond);
  const Nanos until = monotonic_now() + 2 * kSecond;
  while (!server.wait(kSecond)) {
    CHECK(monotonic_now() < until);
    for (const SwitchEvent& event : server.events()) CHECK(report(event).at("kind").index() == 2);
  }
}

void test_unreachable_silent_and_late_switch() {
  uint16_t free_port = 0;
  {
    free_port = UdpSocket::bound("127.0.0.1", 0, {}).local_port();
  }
  std::thread unreachable([&] {
    Endpoint endpoint(options_for(free_port, 0, 2));
    const Nanos before = monotonic_now();
    CHECK(join_group(&endpoint) == "unreachable");
    CHECK(monotonic_now() - before < 4 * kSecond);
  });
  std::thread silent([] {
    const UdpSocket mute = UdpSocket::bound("127.0.0.1", 0, {});
    EndpointOptions options = options_for(mute.local_port(), 0, 2);
    options.worker.lease = 500 * kMillisecond;
    Endpoint endpoint(options);
    CHECK(join_group(&endpoint) == "silent");
  });
  unreachable.join();
  silent.join();

  std::unique_ptr<SwitchServer> server;
  std::thread starts_later([&] {
    usleep(800'000);
    SwitchServerOptions options;
    options.port = free_port;
    server = std::make_unique<SwitchServer>(options);
  });
  const Group group = open_group(free_port, 2);
  starts_later.join();
  check_all_reduce(group, 256, true);
}

// A connected socket only takes what comes from the address it sent to.
void test_replies_leave_from_the_address_asked() {
  SwitchServer server({});
  const Group group = open_group(server.port(), 2, [](EndpointOptions* of_rank) {
    of_rank->host = of_rank->worker.rank == 0 ? "127.0.0.2" : "127.0.0.3";
  });
  check_all_reduce(group, kManyElements, true);
}

void test_garbage_is_counted() {
  SwitchServer server({});
  UdpSocket stranger = UdpSocket::connected("127.0.0.1", server.port(), {});
  std::vector<uint8_t> bytes(NF_HEADER_BYTES + 100, 0x4E);
  std::vector<Message> messages(3);
  for (Message& message : messages) message.clear(nullptr);
  messages[0].append(bytes.data(), 0, nullptr, 0);
  messages[1].append(bytes.data(), NF_HEADER_BYTES - 1, nullptr, 0);
  messages[2].append(bytes.data(), bytes.size(), nullptr, 0);
  CHECK(stranger.send(messages) == 3);
  for (int i = 0; i < 100 && server.counters().at("foreign") == 0; ++i) usleep(10'000);
  CHECK(server.counters().at("foreign") == 1);
  CHECK(server.counters().at("short_datagrams") == 2);
}

// An engine that only has packets to send, some for several receivers.
struct Script {
  std::vector<Transmit> entries;
  size_t next = 0;

  bool poll_transmit(Nanos, Transmit* out) {
    if (next == entries.size()) return false;
    *out = entries[next++];
    return true;
  }
};

Script make_script(const Address* addresses, const std::vector<uint8_t>* payload) {
  Script script;
  for (uint8_t i = 0; i < 250; ++i) {
    Transmit entry;
    entry.addresses = addresses;
    entry.receivers = i % 3 == 0 ? 3 : 1 + i % 2;
    entry.payload = i % 5 == 0 ? nullptr : payload->data();
    entry.payload_bytes = i % 5 == 0 ? 0 : i % 7 == 0 ? 500 : payload->size();
    entry.head_bytes = NF_HEADER_BYTES;
    std::memset(entry.head, i, NF_HEADER_BYTES);
    script.entries.push_back(entry);
  }
  return script;
}

size_t receive_and_check(UdpSocket* socket, const Script& script, uint64_t bit) {
  size_t packets = 0;
  for (auto batch = socket->receive(); !batch.empty(); batch = socket->receive()) {
    for (const Received& received : batch) {
      for (size_t at = 0; at < received.size; at += received.segment_bytes) {
        const Transmit& sent = script.entries[received.bytes[at]];
        const size_t size = std::min(received.segment_bytes, received.size - at);
        CHECK(size == sent.head_bytes + sent.payload_bytes);
        CHECK((sent.receivers & bit) != 0);
        ++packets;
      }
    }
  }
  return packets;
}

// Packs by destination and size, and every receiver gets exactly what was meant for it.
void test_outbox_expands_and_packs(bool offload) {
  SocketOptions options;
  options.offload = offload;
  UdpSocket sender = UdpSocket::bound("127.0.0.1", 0, options);
  UdpSocket first = UdpSocket::connected("127.0.0.1", sender.local_port(), options);
  UdpSocket second = UdpSocket::connected("127.0.0.1", sender.local_port(), options);
  Address addresses[2];
  for (UdpSocket* receiver : {&first, &second}) {
    Message hello;
    const uint8_t byte = 0;
    hello.clear(nullptr);
    hello.append(&byte, 1, nullptr, 0);
    CHECK(receiver->send({&hello, 1}) == 1);
    addresses[receiver == &second] = sender.receive().front().from;
  }
  const std::vector<uint8_t> payload(1024, 1);
  Script script = make_script(addresses, &payload);
  size_t expected = 0;
  for (const Transmit& entry : script.entries) expected += entry.receivers == 3 ? 2 : 1;
  Outbox outbox(&sender);
  outbox.drain(&script, 0);
  CHECK(!outbox.blocked());
  CHECK(receive_and_check(&first, script, 1) + receive_and_check(&second, script, 2) == expected);
  if (sender.gso()) CHECK(sender.counters().send_calls < 10);
}

void test_signal_ends_a_wait() {
  struct sigaction action{};
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, nullptr);
  SwitchServer server({});
  // No retransmission meanwhile: a signal only ends a sleep, else the wait's time slice does.
  const Group group = open_group(server.port(), 2, [](EndpointOptions* of_rank) {
    of_rank->worker.retransmit_initial = kSecond;
  });
  std::vector<float> data(256, 1.0F);
  const uint64_t sequence = submit(group[0].get(), &data, true);
  const pthread_t self = pthread_self();
  std::thread signaller([self] {
    usleep(20'000);
    pthread_kill(self, SIGUSR1);
  });
  const Nanos before = monotonic_now();
  CHECK(group[0]->wait(sequence, kNever) == 0);
  CHECK(monotonic_now() - before < 80 * kMillisecond);
  signaller.join();
}

void test_forked_child_is_refused() {
  SwitchServer server({});
  const Group group = open_group(server.port(), 2);
  const pid_t child = fork();
  if (child == 0) {
    int refused = 0;
    try {
      (void)group[0]->state();
    } catch (const std::runtime_error&) {
      ++refused;
    }
    _exit(refused == 1 && group[0]->orphaned() && server.orphaned() ? 0 : 1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  check_all_reduce(group, 256, true);
}

void test_errors_name_what_failed() {
  const UdpSocket taken = UdpSocket::bound("127.0.0.1", 0, {});
  try {
    SwitchServerOptions options;
    options.host = "127.0.0.1";
    options.port = taken.local_port();
    SwitchServer server(options);
    CHECK(false);
  } catch (const std::system_error& error) {
    CHECK(error.code().value() == EADDRINUSE);
  }
  try {
    EndpointOptions options = options_for(1, 0, 2);
    options.host = "localhost";
    Endpoint endpoint(options);
    CHECK(false);
  } catch (const std::system_error& error) {
    CHECK(error.code().value() == EINVAL);
  }
}

template <class Error, class Call>
bool throws(const Call& call) {
  try {
    call();
  } catch (const Error&) {
    return true;
  }
  return false;
}

void test_wrong_arguments_are_refused() {
  SwitchServer server({});
  const auto refused = [&](const std::function<void(EndpointOptions*)>& adjust) {
    EndpointOptions options = options_for(server.port(), 0, 2);
    adjust(&options);
    return throws<std::invalid_argument>([&] { const Endpoint endpoint(options); });
  };
  CHECK(refused([](EndpointOptions* options) { options->worker.size = 1; }));
  CHECK(refused([](EndpointOptions* options) { options->worker.size = NF_CHILDREN_MAX + 1; }));
  CHECK(refused([](EndpointOptions* options) { options->worker.rank = 2; }));
  CHECK(refused([](EndpointOptions* options) { options->worker.window_max = 0; }));
  CHECK(refused([](EndpointOptions* options) { options->worker.job.assign(65, 'x'); }));

  const Group group = open_group(server.port(), 2);
  std::vector<float> none;
  std::vector<float> some(4);
  CHECK(throws<std::invalid_argument>([&] { submit(group[0].get(), &none, true); }));
  Collective unknown;
  unknown.data = reinterpret_cast<uint8_t*>(some.data());
  unknown.elements = some.size();
  unknown.dtype = 99;
  CHECK(throws<std::invalid_argument>([&] { group[0]->submit(unknown, kNever, true); }));
  unknown.dtype = NF_DTYPE_FLOAT16;
  CHECK(throws<std::invalid_argument>([&] { group[0]->submit(unknown, kNever, true); }));
  check_all_reduce(group, 256, true);  // they took no sequence number
}

// Who ends an endpoint that still joins gets no verdict on the switch, and never waits.
void test_join_of_what_was_ended() {
  SwitchServer server({});
  Endpoint endpoint(options_for(server.port(), 0, 2));
  CHECK(endpoint.join(kSecond) == "waiting");
  std::thread joiner([&] { CHECK(throws<std::runtime_error>([&] { join_group(&endpoint); })); });
  usleep(20'000);
  endpoint.close(kSecond);
  joiner.join();
  CHECK(throws<std::runtime_error>([&] { (void)endpoint.join(kSecond); }));
}

// A switch made of one socket: a packet with `body` to where `question` came from.
void answer(UdpSocket* socket, const Address& to, const Header& question, uint8_t type,
            const Key* key, std::span<const uint8_t> body) {
  Header header;
  header.type = type;
  header.stream = key != nullptr ? 77 : 0;
  header.dtype = NF_DTYPE_UINT8;
  header.elements = static_cast<uint16_t>(body.size());
  header.counter = question.counter;
  std::vector<uint8_t> bytes(NF_HEADER_BYTES);
  encode_header(header, bytes.data());
  seal_packet(bytes.data(), body.data(), body.size(), key);
  Message message;
  message.clear(&to);
  message.append(bytes.data(), bytes.size(), body.data(), body.size());
  CHECK(socket->send({&message, 1}) == 1);
}

// The Joined that settles a group is lost, and the group breaks before it is repeated.
void test_join_of_a_group_that_broke() {
  UdpSocket socket = UdpSocket::bound("127.0.0.1", 0, {});
  const EndpointOptions options = options_for(socket.local_port(), 0, 2);
  Endpoint endpoint(options);
  std::string verdict = "waiting";
  for (int turns = 0; verdict == "waiting" && turns < 50; ++turns) {
    for (const Received& received : socket.receive()) {
      const Datagram datagram{received.bytes, received.bytes + NF_HEADER_BYTES,
                              received.size - NF_HEADER_BYTES};
      Header question;
      CHECK(decode_packet(datagram, &question) == PacketError::none);
      uint8_t body[kControlBytesMax];
      if (question.type == NF_TYPE_HELLO) {
        const size_t bytes = encode(CookieBody{.cookie = 5}, body);
        answer(&socket, received.from, question, NF_TYPE_COOKIE, nullptr, {body, bytes});
      } else if (question.type == NF_TYPE_JOIN) {
        const size_t bytes = encode(Breakage{.cause = NF_CAUSE_GONE, .ranks = 2}, body);
        const Key key = lane_key(options.worker.key, 0);
        answer(&socket, received.from, question, NF_TYPE_GONE, &key, {body, bytes});
      }
    }
    verdict = endpoint.join(20 * kMillisecond);
  }
  CHECK(verdict == "settled");
  CHECK(endpoint.failure()->cause == NF_CAUSE_GONE);
  CHECK(endpoint.failure()->ranks == 2);
  std::vector<float> data(8, 1.0F);
  CHECK(wait_for(&endpoint, submit(&endpoint, &data, true)) == 2);
}

}  // namespace
}  // namespace netfold

int main() {
  using namespace netfold;
  for (const bool offload : {true, false}) {
    test_all_reduce("0.0.0.0", "127.0.0.1", offload, 2);
    test_all_reduce("::", "::1", offload, 4);
    test_all_reduce("::", "127.0.0.1", offload, 2);  // dual-stack
    test_shards(offload, 2);
    test_shards(offload, 4);
    test_outbox_expands_and_packs(offload);
  }
  test_many_waiters();
  test_heartbeats_while_idle();
  test_leaving_ends_what_others_wait_for();
  test_close_is_idempotent_and_ends_waiting();
  test_stop_breaks_groups();
  test_drain_ends_with_the_last_group();
  test_unreachable_silent_and_late_switch();
  test_replies_leave_from_the_address_asked();
  test_garbage_is_counted();
  test_signal_ends_a_wait();
  test_forked_child_is_refused();
  test_errors_name_what_failed();
  test_wrong_arguments_are_refused();
  test_join_of_what_was_ended();
  test_join_of_a_group_that_broke();
}
