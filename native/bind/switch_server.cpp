#include "io/switch_server.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.h"

namespace netfold {
namespace {

const SwitchServerOptions kDefaults;

void construct(Owner<SwitchServer>* self, std::string host, uint16_t port,
               const std::optional<nb::bytes>& secret, uint16_t window_max,
               size_t receive_buffer_bytes, uint64_t memory_bytes_max, Nanos lease, bool offload,
               uint16_t node, std::string parent_host, uint16_t parent_port) {
  SwitchServerOptions options;
  options.host = std::move(host);
  options.port = port;
  options.engine.has_secret = secret.has_value();
  if (secret) options.engine.secret = key_from(*secret);
  options.engine.window_max = window_max;
  options.engine.memory_bytes_max = memory_bytes_max;
  options.engine.lease = lease;
  options.engine.node = node;
  options.socket.receive_buffer_bytes = receive_buffer_bytes;
  options.socket.offload = offload;
  options.parent_host = std::move(parent_host);
  options.parent_port = parent_port;
  new (self) Owner<SwitchServer>(options);
}

uint16_t port(const Owner<SwitchServer>& self) {
  return (*self).port();
}

std::vector<Report> events(const Owner<SwitchServer>& self) {
  std::vector<Report> result;
  for (const SwitchEvent& event : (*self).events()) result.push_back(report(event));
  return result;
}

}  // namespace

void bind_switch_server(nb::module_& module) {
  nb::class_<Owner<SwitchServer>>(module, "SwitchServer", nb::is_final())
      .def("__init__", construct, nb::kw_only(), "host"_a = kDefaults.host,
           "port"_a = kDefaults.port, "secret"_a = nb::none(),
           "window_max"_a = kDefaults.engine.window_max,
           "receive_buffer_bytes"_a = kDefaults.socket.receive_buffer_bytes,
           "memory_bytes_max"_a = kDefaults.engine.memory_bytes_max,
           "lease_ns"_a = kDefaults.engine.lease, "offload"_a = true,
           "node"_a = kDefaults.engine.node, "parent_host"_a = "", "parent_port"_a = 0)
      .def_prop_ro("port", port)
      .def("wait", method(&SwitchServer::wait), "timeout_ns"_a, WithoutGil())
      .def("events", events, WithoutGil())
      .def("drain", method(&SwitchServer::drain), WithoutGil())
      .def("stop", method(&SwitchServer::stop), WithoutGil())
      .def("counters", method(&SwitchServer::counters), WithoutGil())
      .def("path", method(&SwitchServer::path), WithoutGil());
}

}  // namespace netfold
