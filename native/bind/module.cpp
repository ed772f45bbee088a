// The module netfold._native; src/netfold/_native.pyi is its documentation.
#include <system_error>

#include "bind/bind.h"
#include "io/endpoint.h"

namespace netfold {
namespace {

void translate(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::system_error& error) {
    // OSError's constructor picks the subclass that belongs to the errno.
    const nb::tuple arguments = nb::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  } catch (const UnknownSequence& error) {
    PyErr_SetString(PyExc_KeyError, error.what());
  }
}

}  // namespace
}  // namespace netfold

NB_MODULE(_native, module) {
  // Torch keeps groups, and so endpoints, until the process ends: nothing a user could mend.
  nanobind::set_leak_warnings(false);
  nanobind::register_exception_translator(netfold::translate);
  module.attr("NANOS_FOREVER") = netfold::kNever;
  netfold::bind_endpoint(module);
  netfold::bind_switch_server(module);
  netfold::bind_protocol(module);
  netfold::bind_simulate(module);
}
