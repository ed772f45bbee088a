#include "sim/simulate.h"

#include "sim/scenario.h"

namespace netfold {

SimulationReport simulate(const SimulationOptions& options) {
  SimulationReport report;
  Scenario scenario;
  if (!draw_scenario(options.seed, options.workers, options.collectives, options.faults,
                     &scenario)) {
    report.error = "unknown fault in \"" + options.faults + "\"";
    return report;
  }
  report.faults = describe_faults(scenario.faults);
  report.workers = static_cast<uint32_t>(scenario.workers.size());
  return report;
}

}  // namespace netfold
