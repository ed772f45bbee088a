#include "io/report.h"

#include <array>

#include "core/kernels.h"

namespace netfold {
namespace {

template <class Struct>
struct Name {
  const char* name;
  uint64_t Struct::* field;
};

constexpr Name<WorkerCounters> kWorkerNames[] = {
    {"packets_tx", &WorkerCounters::packets_tx},
    {"packets_rx", &WorkerCounters::packets_rx},
    {"bytes_tx", &WorkerCounters::bytes_tx},
    {"bytes_rx", &WorkerCounters::bytes_rx},
    {"data_tx", &WorkerCounters::data_tx},
    {"data_resent", &WorkerCounters::data_resent},
    {"resyncs", &WorkerCounters::resyncs},
    {"probes_tx", &WorkerCounters::probes_tx},
    {"results_rx", &WorkerCounters::results_rx},
    {"results_duplicate", &WorkerCounters::results_duplicate},
    {"haves_rx", &WorkerCounters::haves_rx},
    {"voids_rx", &WorkerCounters::voids_rx},
    {"foreign", &WorkerCounters::foreign},
    {"malformed", &WorkerCounters::malformed},
    {"bad_crc", &WorkerCounters::bad_crc},
    {"bad_tag", &WorkerCounters::bad_tag},
    {"bad_version", &WorkerCounters::bad_version},
    {"unexpected", &WorkerCounters::unexpected},
    {"collectives_ok", &WorkerCounters::collectives_ok},
    {"collectives_failed", &WorkerCounters::collectives_failed},
};

constexpr Name<SwitchCounters> kSwitchNames[] = {
    {"packets_tx", &SwitchCounters::packets_tx},
    {"packets_rx", &SwitchCounters::packets_rx},
    {"bytes_tx", &SwitchCounters::bytes_tx},
    {"bytes_rx", &SwitchCounters::bytes_rx},
    {"data_rx", &SwitchCounters::data_rx},
    {"chunks_completed", &SwitchCounters::chunks_completed},
    {"results_tx", &SwitchCounters::results_tx},
    {"results_resent", &SwitchCounters::results_resent},
    {"haves_tx", &SwitchCounters::haves_tx},
    {"probes_rx", &SwitchCounters::probes_rx},
    {"duplicates", &SwitchCounters::duplicates},
    {"late", &SwitchCounters::late},
    {"early", &SwitchCounters::early},
    {"foreign", &SwitchCounters::foreign},
    {"malformed", &SwitchCounters::malformed},
    {"bad_crc", &SwitchCounters::bad_crc},
    {"bad_tag", &SwitchCounters::bad_tag},
    {"bad_version", &SwitchCounters::bad_version},
    {"bad_cookie", &SwitchCounters::bad_cookie},
    {"unknown_stream", &SwitchCounters::unknown_stream},
    {"replayed", &SwitchCounters::replayed},
    {"refused", &SwitchCounters::refused},
    {"unexpected", &SwitchCounters::unexpected},
    {"transmit_dropped", &SwitchCounters::transmit_dropped},
    {"groups_open", &SwitchCounters::groups_open},
    {"memory_bytes", &SwitchCounters::memory_bytes},
};

constexpr Name<SocketCounters> kSocketNames[] = {
    {"socket_receive_calls", &SocketCounters::receive_calls},
    {"socket_send_calls", &SocketCounters::send_calls},
    {"socket_receive_errors", &SocketCounters::receive_errors},
    {"socket_send_errors", &SocketCounters::send_errors},
    {"socket_send_too_big", &SocketCounters::send_too_big},
    {"socket_gso_refused", &SocketCounters::gso_refused},
    {"socket_port_refused", &SocketCounters::port_refused},
};

constexpr Name<OutboxCounters> kOutboxNames[] = {
    {"send_deferred", &OutboxCounters::packets_deferred},
    {"send_dropped", &OutboxCounters::packets_dropped},
};

template <class Struct, size_t kSize>
void add_named(const Struct& from, const Name<Struct> (&names)[kSize], Counters* to) {
  for (const auto& [name, field] : names) (*to)[name] += from.*field;
}

const char* name_of(SwitchEvent::Kind kind) noexcept {
  switch (kind) {
    case SwitchEvent::Kind::group_settled:
      return "group_settled";
    case SwitchEvent::Kind::group_broken:
      return "group_broken";
    case SwitchEvent::Kind::group_closed:
      return "group_closed";
    case SwitchEvent::Kind::member_refused:
      return "member_refused";
  }
  return "?";
}

}  // namespace

void add_counters(const WorkerCounters& from, Counters* to) {
  add_named(from, kWorkerNames, to);
}
void add_counters(const SwitchCounters& from, Counters* to) {
  add_named(from, kSwitchNames, to);
}
void add_counters(const SocketCounters& from, Counters* to) {
  add_named(from, kSocketNames, to);
}
void add_counters(const OutboxCounters& from, Counters* to) {
  add_named(from, kOutboxNames, to);
}

Report report(const SwitchEvent& event) {
  const Breakage& why = event.breakage;
  return {
      {"kind", std::string(name_of(event.kind))},
      {"job", event.job},
      {"group", event.group},
      {"size", uint64_t{event.size}},
      {"payload_bytes", uint64_t{event.payload_bytes}},
      {"window", uint64_t{event.window}},
      {"rank", uint64_t{event.rank}},
      {"reason", uint64_t{event.reason}},
      {"cause", uint64_t{why.cause}},
      {"ranks", why.ranks},
      {"added", why.added},
      {"chunk", why.chunk},
      {"epoch", uint64_t{why.epoch}},
      {"collective", uint64_t{why.collective}},
      {"rank_a", uint64_t{why.rank_a}},
      {"rank_b", uint64_t{why.rank_b}},
      {"collective_a", uint64_t{why.collective_a}},
      {"collective_b", uint64_t{why.collective_b}},
      {"fingerprint_a", why.fingerprint_a},
      {"fingerprint_b", why.fingerprint_b},
  };
}

Report report(const UdpSocket& socket) {
  return {
      {"local", socket.local()},
      {"ipv6", socket.ipv6()},
      {"gso", socket.gso()},
      {"gro", socket.gro()},
      {"receive_buffer_bytes", uint64_t{socket.receive_buffer_bytes()}},
      {"send_buffer_bytes", uint64_t{socket.send_buffer_bytes()}},
      {"kernel_set", std::string(kernel_set_name(kernel_set()))},
  };
}

const char* name_of(WorkerState state) noexcept {
  constexpr std::array kNames{"hello",  "joining", "waiting", "active", "breaking",
                              "broken", "leaving", "left",    "refused"};
  return kNames[static_cast<size_t>(state)];
}

}  // namespace netfold
