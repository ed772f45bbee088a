// The event loop: engines, applications on top of them, and what a scenario does to both.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/member.h"
#include "core/middle_switch.h"
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
    kSwitchReturn,
    kDrain,
  };
  enum class Phase : uint8_t { unborn, alive, leaving, closed };
  struct Part {                // of a collective, on one lane
    uint64_t first_chunk = 0;  // by the simulation's own count
    uint64_t chunks = 0;
    Reference reference;
  };
  struct Actor {  // a member with its application and driver
    const WorkerPlan* plan = nullptr;
    uint16_t endpoint = 0;
    std::unique_ptr<Member> engine;
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
    std::map<uint64_t, GuardedTensor> tensors;    // by sequence
    std::vector<std::map<uint64_t, Part>> parts;  // by lane, by sequence
    Fate fate;
    Nanos quiet_since = 0;  // of nothing but waiting
    uint64_t quiet_packets = 0;
  };

  struct SwitchActor {
    std::unique_ptr<SwitchEngine> engine;
    bool dead = false;
    Nanos frozen_until = 0;
    Nanos wake_at = kNever;
    std::deque<uint32_t> inbox;
  };

  // what happens
  void handle(const TimelineEvent& event);
  void handle_switch(const TimelineEvent& event);
  void deliver(uint32_t packet);
  void deliver_to_switch(SwitchActor* to, const Packet& packet);
  void note_seen(const Packet& packet);
  void check_slot(const Switch* at, const Packet& packet);
  void deliver_to_actor(Actor* actor, const Packet& packet);
  void start(Actor* actor);
  void open(Actor* actor, const WorkerConfig& config);
  [[nodiscard]] std::vector<Aggregator> aggregators_of(const Actor& actor) const;
  [[nodiscard]] std::unique_ptr<SwitchEngine> make_switch(uint16_t number);
  [[nodiscard]] SwitchConfig switch_config(uint64_t index) const;
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
  void drive_switch(uint32_t index);
  void send(const Address& from, const Transmit& transmit);
  void observe_sent(Actor* actor, const Transmit& transmit);
  void arm(Actor* actor, uint32_t sequence);
  void close(Actor* actor);
  // verdicts
  void note_parts(Actor* actor, uint64_t sequence, const Collective& what);
  void check_kept(Actor* actor, size_t lane, uint64_t chunk);
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
  std::vector<SwitchActor> switches_;
  std::deque<Actor> actors_;
  std::vector<std::vector<Reference>> references_;  // by group, by sequence - 1
  uint32_t forged_ = 0;
  std::vector<uint8_t> seen_;  // the last packet that passed, for the forger
  Address seen_to_;
  Nanos instant_ = -1;
  uint64_t events_at_instant_ = 0;
  SimulationReport report_;
};

}  // namespace netfold
