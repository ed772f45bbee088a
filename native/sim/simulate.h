// One run of the simulated net: real engines, a virtual clock, faults drawn from a seed.
//
// The same options give the same run, packet for packet, on every machine: SimulationReport::digest
// is a hash of everything that happened.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace netfold {

struct SimulationOptions {
  uint64_t seed = 0;
  uint32_t workers = 0;      // of every group; 0: drawn from the seed
  uint32_t collectives = 0;  // of every group; 0: drawn from the seed
  std::string faults;        // names separated by commas, "none", or "": drawn from the seed
  bool trace = false;        // report every packet
};

struct SimulationReport {
  bool ok = false;
  std::string error;    // the first check that failed, with what everybody was doing
  std::string faults;   // those of this run
  std::string outcome;  // how each group ended
  std::string trace;
  uint32_t workers = 0;
  uint64_t events = 0;
  int64_t virtual_ns = 0;
  uint64_t digest = 0;
  std::vector<std::pair<std::string, uint64_t>> counters;
};

[[nodiscard]] SimulationReport simulate(const SimulationOptions& options);

}  // namespace netfold
