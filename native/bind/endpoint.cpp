#include "io/endpoint.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bind/bind.h"

namespace netfold {
namespace {

constexpr WorkerConfig kDefaults;
constexpr SocketOptions kSocketDefaults;

void construct(Owner<Endpoint>* self, std::string host, uint16_t port, std::string job,
               uint64_t incarnation, const nb::bytes& key, uint64_t group, uint16_t rank,
               uint16_t size, const std::optional<nb::bytes>& secret, uint16_t payload_bytes_max,
               uint16_t window_max, size_t receive_buffer_bytes, bool offload, Nanos lease,
               Nanos heartbeat, Nanos retransmit_initial, Nanos retransmit_min, Nanos late_after,
               std::string bind_device, bool has_shard) {
  EndpointOptions options;
  options.host = std::move(host);
  options.port = port;
  options.has_shard = has_shard;
  options.worker.job = std::move(job);
  options.worker.incarnation = incarnation;
  options.worker.key = key_from(key);
  options.worker.group = group;
  options.worker.rank = rank;
  options.worker.size = size;
  options.worker.has_secret = secret.has_value();
  if (secret) options.worker.secret = key_from(*secret);
  options.worker.payload_bytes_max = payload_bytes_max;
  options.worker.window_max = window_max;
  options.worker.lease = lease;
  options.worker.heartbeat = heartbeat;
  options.worker.retransmit_initial = retransmit_initial;
  options.worker.retransmit_min = retransmit_min;
  options.worker.late_after = late_after;
  options.socket.receive_buffer_bytes = receive_buffer_bytes;
  options.socket.offload = offload;
  options.socket.device = std::move(bind_device);
  new (self) Owner<Endpoint>(options);
}

// (host, port, rank of the host or -1)
using Place = std::tuple<std::string, uint16_t, int>;

void connect(const Owner<Endpoint>& self, const std::vector<Place>& places) {
  std::vector<AggregatorPlace> list;
  for (const auto& [host, port, rank] : places) {
    list.push_back({.host = host, .port = port});
    if (rank >= 0) list.back().host_rank = static_cast<uint16_t>(rank);
  }
  (*self).connect(list);
}

uint64_t submit(const Owner<Endpoint>& self, uintptr_t pointer, uint64_t elements, uint8_t dtype,
                uint8_t op, uint8_t mode, uint8_t tensor_dtype, Nanos timeout, bool deferred) {
  Collective collective;
  collective.data = reinterpret_cast<uint8_t*>(pointer);
  collective.elements = elements;
  collective.dtype = dtype;
  collective.tensor_dtype = tensor_dtype;
  collective.op = op;
  collective.mode = mode;
  return (*self).submit(collective, timeout, deferred);
}

using Refusal = std::tuple<uint8_t, uint8_t, uint16_t>;

std::optional<Refusal> refusal(const Owner<Endpoint>& self) {
  const std::optional<RefusedBody> body = (*self).refusal();
  if (!body) return std::nullopt;
  return Refusal{body->reason, body->version, body->detail};
}

using Late = std::tuple<uint64_t, uint64_t, std::vector<uint32_t>>;

std::vector<Late> late(const Owner<Endpoint>& self) {
  std::vector<Late> result;
  for (LateCollective& one : (*self).late()) {
    result.emplace_back(one.sequence, one.missing, std::move(one.progress));
  }
  return result;
}

}  // namespace

void bind_endpoint(nb::module_& module) {
  nb::class_<Breakage>(module, "Failure", nb::is_final())
      .def_ro("cause", &Breakage::cause)
      .def_ro("ranks", &Breakage::ranks)
      .def_ro("added", &Breakage::added)
      .def_ro("chunk", &Breakage::chunk)
      .def_ro("epoch", &Breakage::epoch)
      .def_ro("collective", &Breakage::collective)
      .def_ro("rank_a", &Breakage::rank_a)
      .def_ro("rank_b", &Breakage::rank_b)
      .def_ro("collective_a", &Breakage::collective_a)
      .def_ro("collective_b", &Breakage::collective_b)
      .def_ro("fingerprint_a", &Breakage::fingerprint_a)
      .def_ro("fingerprint_b", &Breakage::fingerprint_b);

  nb::class_<Owner<Endpoint>>(module, "Endpoint", nb::is_final())
      .def("__init__", construct, nb::kw_only(), "host"_a, "port"_a, "job"_a, "incarnation"_a,
           "key"_a, "group"_a, "rank"_a, "size"_a, "secret"_a = nb::none(),
           "payload_bytes_max"_a = 0, "window_max"_a = kDefaults.window_max,
           "receive_buffer_bytes"_a = kSocketDefaults.receive_buffer_bytes, "offload"_a = true,
           "lease_ns"_a = kDefaults.lease, "heartbeat_ns"_a = kDefaults.heartbeat,
           "retransmit_initial_ns"_a = kDefaults.retransmit_initial,
           "retransmit_min_ns"_a = kDefaults.retransmit_min,
           "late_after_ns"_a = kDefaults.late_after, "bind_device"_a = "", "shard"_a = false)
      .def("connect", connect, "aggregators"_a, WithoutGil())
      .def_prop_ro("port", method(&Endpoint::port))
      .def("join", method(&Endpoint::join), "timeout_ns"_a, WithoutGil())
      .def("submit", submit, "pointer"_a, "elements"_a, "dtype"_a, "op"_a, "mode"_a,
           "tensor_dtype"_a, "timeout_ns"_a, "deferred"_a, WithoutGil())
      .def("skip", method(&Endpoint::skip), "fingerprint"_a, WithoutGil())
      .def("wait", method(&Endpoint::wait), "sequence"_a, "timeout_ns"_a, WithoutGil())
      .def("test", method(&Endpoint::test), "sequence"_a, WithoutGil())
      .def("release", method(&Endpoint::release), "sequence"_a, WithoutGil())
      .def("watch", method(&Endpoint::watch), "sequence"_a, WithoutGil())
      .def("next_watched", method(&Endpoint::next_watched), "timeout_ns"_a, WithoutGil())
      .def("bytes_done", method(&Endpoint::bytes_done), "sequence"_a, WithoutGil())
      .def("failure", method(&Endpoint::failure), WithoutGil())
      .def("refusal", refusal, WithoutGil())
      .def("joined_ranks", method(&Endpoint::joined_ranks), WithoutGil())
      .def("late", late, WithoutGil())
      .def("abort", method(&Endpoint::abort), WithoutGil())
      .def("close", method(&Endpoint::close), "linger_ns"_a = kSecond, WithoutGil())
      .def("counters", method(&Endpoint::counters), WithoutGil())
      .def("path", method(&Endpoint::path), WithoutGil())
      .def_prop_ro("state", method(&Endpoint::state), WithoutGil());
}

}  // namespace netfold
