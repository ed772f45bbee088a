#include "sim/simulate.h"

#include "sim/simulation.h"

namespace netfold {

SimulationReport simulate(const SimulationOptions& options) {
  Scenario scenario;
  if (!draw_scenario(options.seed, options.workers, options.collectives, options.faults,
                     &scenario)) {
    SimulationReport report;
    report.error = "unknown fault in \"" + options.faults + "\"";
    return report;
  }
  return Simulation(scenario, options.trace).run();
}

}  // namespace netfold
