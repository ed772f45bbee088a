// What the binding files share. They translate types and do nothing else.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>

#include "core/siphash.h"

namespace netfold {

namespace nb = nanobind;
using namespace nb::literals;

void bind_endpoint(nb::module_& module);
void bind_switch_server(nb::module_& module);
void bind_protocol(nb::module_& module);
void bind_simulate(nb::module_& module);

using WithoutGil = nb::call_guard<nb::gil_scoped_release>;

// Owns what has a thread of its own. It ends without the GIL, since it waits; and in a forked
// child, where its thread is missing, it is left as it is.
template <class T>
class Owner {
 public:
  template <class Options>
  explicit Owner(const Options& options) : held_(new T(options)) {}
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() {
    if (held_->orphaned()) return;
    const nb::gil_scoped_release without_gil;
    delete held_;
  }

  [[nodiscard]] T& operator*() const noexcept { return *held_; }

 private:
  T* held_;
};

// A method of T as a function of its Owner.
template <class T, class Result, class... Arguments>
auto method(Result (T::*function)(Arguments...)) {
  return [function](const Owner<T>& owner, Arguments... arguments) -> Result {
    return ((*owner).*function)(arguments...);
  };
}

inline Key key_from(const nb::bytes& bytes) {
  Key key{};
  if (bytes.size() != sizeof key) throw nb::value_error("a key has 16 bytes");
  std::memcpy(&key, bytes.data(), sizeof key);
  return key;
}

}  // namespace netfold
