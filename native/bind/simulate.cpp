#include "sim/simulate.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <map>
#include <variant>

#include "bind/bind.h"

namespace netfold {
namespace {

using Result = std::map<std::string, std::variant<bool, uint64_t, int64_t, std::string>>;

Result run(uint64_t seed, uint32_t workers, uint32_t collectives, const std::string& faults,
           bool trace) {
  const SimulationReport report = simulate({.seed = seed,
                                            .workers = workers,
                                            .collectives = collectives,
                                            .faults = faults,
                                            .trace = trace});
  Result result{
      {"ok", report.ok},         {"error", report.error},
      {"faults", report.faults}, {"outcome", report.outcome},
      {"trace", report.trace},   {"workers", uint64_t{report.workers}},
      {"events", report.events}, {"virtual_ns", report.virtual_ns},
      {"digest", report.digest},
  };
  for (const auto& [name, value] : report.counters) result[name] = value;
  return result;
}

}  // namespace

void bind_simulate(nb::module_& module) {
  module.def("simulate", run, "seed"_a, nb::kw_only(), "workers"_a = 0, "collectives"_a = 0,
             "faults"_a = "", "trace"_a = false, WithoutGil());
}

}  // namespace netfold
