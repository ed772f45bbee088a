// A few seeds of the simulated net, for builds without Python and for sanitizers.
#include "sim/simulate.h"
#include "tests/check.h"

int main() {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    netfold::SimulationOptions options;
    options.seed = seed;
    CHECK(netfold::simulate(options).ok);
  }
}
