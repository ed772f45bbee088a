// The event loop: engines, applications on top of them, and what a scenario does to both.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/checkers.h"
#include "sim/simulate.h"

namespace netfold {

class Simulation {
 public:
  Simulation(const Scenario& scenario, bool trace);
  [[nodiscard]] SimulationReport run();

 private:
  enum Kind : uint32_t {
    kDeliver,  // packet
    kWake,     // actor: its engine's timer
    kStep,     // actor: its application
    kFreeze,   // actor, for the length in `pending_`
    kThaw,     // actor
    kDie,
    kAbort,
    kQuit,
    kRebind,
    kDouble,
    kForge,
    kHeal,
    kSwitchWake,
    kSwitchFreeze,
    kSwitchThaw,
    kSwitchDie,
    kDrain,
  };
  enum class Phase : uint8_t { unborn, alive, leaving, closed };
  struct Actor {  // a worker engine with its application and driver
    const WorkerPlan* plan = nullptr;
    uint16_t endpoint = 0;
    std::unique_ptr<Worker> engine;
    Phase phase = Phase::unborn;
    bool dead = false;
    bool excused = false;
    bool intruder = false;  // a second engine with a rank that is taken
    Nanos frozen_until = 0;
    Nanos freeze_length = 0;
    Nanos wake_at = kNever;
    Nanos give_up_at = 0;
    Nanos left_at = 0;
    std::deque<uint32_t> inbox;  // packets that came while it was frozen
    uint32_t submitted = 0;
    uint32_t finished = 0;
    bool pausing = false;
    uint64_t end_chunk = 0;                     // by the simulation's own count
    std::map<uint64_t, GuardedTensor> tensors;  // by sequence
    Fate fate;
    Nanos quiet_since = 0;  // of nothing but waiting
    uint64_t quiet_packets = 0;
  };

  // what happens
  void handle(const TimelineEvent& event);
  void deliver(uint32_t packet);
  void deliver_to_switch(const Packet& packet);
  void deliver_to_actor(Actor* actor, const Packet& packet);
  void start(Actor* actor);
  void step(Actor* actor);
  void submit_next(Actor* actor);
  void thaw(Actor* actor);
  void start_intruder(const Actor& twin);
  void forge();
  // drivers
  void drive(Actor* actor);
  void drain_events(Actor* actor);
  void on_completed(Actor* actor, const WorkerEvent& event);
  void schedule_wake(Actor* actor);
  void drive_switch();
  void observe_sent(Actor* actor, const Transmit& transmit);
  void arm(Actor* actor, uint32_t sequence);
  void close(Actor* actor);
  // verdicts
  [[nodiscard]] uint64_t chunks_of(const Actor& actor, uint64_t sequence,
                                   const CollectivePlan& plan) const;
  void check_kept(Actor* actor, uint64_t chunk);
  void check_end();
  [[nodiscard]] bool all_closed() const;
  void fail(const std::string& what);
  [[nodiscard]] std::string describe_all() const;
  void note(const TimelineEvent& event);
  [[nodiscard]] uint32_t index_of(const Actor& actor) const;
  [[nodiscard]] bool frozen(const Actor& actor) const;
  [[nodiscard]] const GroupPlan& group_of(const Actor& actor) const;

  const Scenario& scenario_;
  const bool trace_;
  Timeline timeline_;
  Network network_;
  Random random_;
  Random forger_random_;
  std::unique_ptr<Switch> switch_;
  std::deque<Actor> actors_;
  std::vector<std::vector<Reference>> references_;  // by group, by sequence - 1
  bool switch_dead_ = false;
  Nanos switch_frozen_until_ = 0;
  Nanos switch_wake_at_ = kNever;
  std::deque<uint32_t> switch_inbox_;
  uint32_t forged_ = 0;
  std::vector<uint8_t> seen_;  // the last packet that passed, for the forger
  Nanos instant_ = -1;
  uint64_t events_at_instant_ = 0;
  SimulationReport report_;
};

}  // namespace netfold
