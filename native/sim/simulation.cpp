#include "sim/simulation.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/partition.h"
#include "sim/wire_view.h"

namespace netfold {
namespace {

constexpr uint64_t kEventsMax = 6'000'000;
constexpr uint64_t kEventsAtInstantMax = 100'000;
constexpr Nanos kLivenessBound = 1500 * kSecond;  // after the network has healed
constexpr Nanos kJoinPatience = 120 * kSecond;
constexpr Nanos kLeaveLinger = 10 * kSecond;
constexpr Nanos kQuietGrace = 2 * kSecond;
constexpr size_t kTraceBytesMax = 1 << 22;

std::span<const uint8_t> head_of(const Transmit& transmit) {
  return {transmit.head, transmit.head_bytes};
}

std::span<const uint8_t> payload_of(const Transmit& transmit) {
  return {transmit.payload, transmit.payload_bytes};
}

Datagram datagram_of(const Packet& packet) {
  return {packet.bytes.data(), packet.bytes.data() + NF_HEADER_BYTES,
          packet.bytes.size() - NF_HEADER_BYTES};
}

}  // namespace

Simulation::Simulation(const Scenario& scenario, bool trace)
    : scenario_(scenario),
      trace_(trace),
      network_(&timeline_, kDeliver, derive_seed(scenario.seed, 2)),
      random_(derive_seed(scenario.seed, 3)),
      forger_random_(derive_seed(scenario.seed, 4)),
      switches_(scenario.switches + scenario.parents.size()) {
  for (uint16_t i = 0; i < switches_.size(); ++i) switches_[i].engine = make_switch(i);
  for (const GroupPlan& group : scenario.groups) {
    auto& references = references_.emplace_back();
    for (const CollectivePlan& plan : group.collectives)
      references.push_back(make_reference(plan, group.size, scenario.fold_tree(group)));
  }
  for (const WorkerPlan& plan : scenario.workers) {
    Actor& actor = actors_.emplace_back();
    actor.plan = &plan;
    actor.endpoint = network_.add_endpoint(plan.up, plan.down);
    actor.fate.rank = plan.config.rank;
    actor.fate.outcomes.resize(group_of(actor).collectives.size(), Outcome::none);
    timeline_.add(plan.join_at, kStep, index_of(actor));
  }
  timeline_.add(scenario.heal_at, kHeal, 0);
  if (scenario.switch_freeze_at != kNever)
    timeline_.add(scenario.switch_freeze_at, kSwitchFreeze, scenario.troubled_switch);
  if (scenario.switch_dies_at != kNever)
    timeline_.add(scenario.switch_dies_at, kSwitchDie, scenario.troubled_switch);
  for (const auto& [at, away] : scenario.restarts) {
    timeline_.add(at, kSwitchDie, scenario.troubled_switch);
    timeline_.add(at + away, kSwitchReturn, scenario.troubled_switch);
  }
  if (scenario.drain_at != kNever)
    timeline_.add(scenario.drain_at, kDrain, scenario.troubled_switch);
  if (scenario.forger.packets > 0) timeline_.add(0, kForge, 0);
}

// Aggregators are alike but for what each draws by itself.
SwitchConfig Simulation::switch_config(uint64_t index) const {
  SwitchConfig config = scenario_.switch_config;
  Random own(derive_seed(scenario_.seed, 1000 + index));
  if (index == 0) return config;
  config.cookie_key = {own.next(), own.next()};
  config.first_stream = static_cast<uint32_t>(own.next());
  return config;
}

std::unique_ptr<SwitchEngine> Simulation::make_switch(uint16_t number) {
  if (!scenario_.tree() || number == 0) return std::make_unique<Switch>(switch_config(number), 0);
  const size_t link = number - 1U;
  network_.add_link(number, scenario_.links_up[link], scenario_.links_down[link]);
  return std::make_unique<MiddleSwitch>(MiddleConfig{
      .parent = network_.address(scenario_.parents[link]), .own = switch_config(number)});
}

SimulationReport Simulation::run() {
  report_.workers = static_cast<uint32_t>(scenario_.workers.size());
  report_.faults = describe_faults(scenario_.faults);
  TimelineEvent event;
  while (report_.error.empty() && !all_closed()) {
    if (!timeline_.pop(&event)) {
      fail("no progress: nothing will ever happen again");
      break;
    }
    note(event);
    handle(event);
    if (report_.events > kEventsMax || timeline_.now() > scenario_.heal_at + kLivenessBound)
      fail("no progress");
  }
  if (report_.error.empty()) check_end();
  report_.ok = report_.error.empty();
  report_.virtual_ns = timeline_.now();
  const NetworkCounters& net = network_.counters();
  SwitchCounters sum;
  const auto add = [&sum](const SwitchCounters& from) {
    sum.chunks_completed += from.chunks_completed;
    sum.duplicates += from.duplicates;
    sum.late += from.late;
    sum.early += from.early;
    sum.bad_crc += from.bad_crc;
    sum.bad_tag += from.bad_tag;
    sum.replayed += from.replayed;
  };
  for (const SwitchActor& one : switches_) add(one.engine->counters());
  for (const Actor& actor : actors_)
    if (actor.engine != nullptr && actor.engine->shard() != nullptr)
      add(actor.engine->shard()->counters());
  report_.counters = {{"sent", net.sent},
                      {"lost", net.lost},
                      {"duplicated", net.duplicated},
                      {"reordered", net.reordered},
                      {"corrupted", net.corrupted},
                      {"forged", forged_},
                      {"chunks_completed", sum.chunks_completed},
                      {"duplicates", sum.duplicates},
                      {"late", sum.late},
                      {"early", sum.early},
                      {"bad_crc", sum.bad_crc},
                      {"bad_tag", sum.bad_tag},
                      {"replayed", sum.replayed}};
  return report_;
}

void Simulation::note(const TimelineEvent& event) {
  report_.events += 1;
  uint64_t word = mix64(static_cast<uint64_t>(event.at) ^ uint64_t{event.kind} << 56);
  if (event.kind == kDeliver)
    for (uint8_t byte : network_.packet(event.index).bytes) word = word * 0x100000001B3 ^ byte;
  else
    word ^= event.index;
  report_.digest = mix64(report_.digest ^ word);
  events_at_instant_ = event.at == instant_ ? events_at_instant_ + 1 : 0;
  instant_ = event.at;
  if (events_at_instant_ > kEventsAtInstantMax) fail("the clock stands still");
  if (!trace_ || report_.trace.size() > kTraceBytesMax) return;
  report_.trace += std::to_string(event.at) + " kind " + std::to_string(event.kind);
  if (event.kind == kDeliver) {
    const Packet& packet = network_.packet(event.index);
    const WireView view{packet.bytes};
    report_.trace += " " + std::to_string(endpoint_of(packet.from)) + ">" +
                     std::to_string(endpoint_of(packet.to)) + " type " +
                     std::to_string(view.type()) + " rank " + std::to_string(view.rank()) +
                     " chunk " + std::to_string(view.chunk()) + " counter " +
                     std::to_string(view.counter()) + " bitmap " + std::to_string(view.bitmap()) +
                     (packet.corrupted ? " corrupted" : "") + (packet.forged ? " forged" : "");
  } else {
    report_.trace += " of " + std::to_string(event.index);
  }
  report_.trace += "\n";
}

void Simulation::handle(const TimelineEvent& event) {
  switch (event.kind) {
    case kDeliver:
      return deliver(event.index);
    case kForge:
      return forge();
    case kHeal:
      return network_.heal();
    case kSwitchWake:
    case kSwitchFreeze:
    case kSwitchThaw:
    case kSwitchDie:
    case kSwitchReturn:
    case kDrain:
      return handle_switch(event);
    default:
      break;
  }
  Actor* actor = &actors_[event.index];
  if (actor->dead || actor->phase == Phase::closed) return;
  switch (event.kind) {
    case kWake:
      if (event.at != actor->wake_at) return;
      actor->wake_at = kNever;
      if (frozen(*actor)) return;
      return drive(actor);
    case kStep:
      return step(actor);
    case kFreeze:
      actor->frozen_until = timeline_.now() + actor->freeze_length;
      if (actor->freeze_length >= scenario_.lease()) actor->excused = true;
      return timeline_.add(actor->frozen_until, kThaw, event.index);
    case kThaw:
      return thaw(actor);
    case kDie:
      actor->dead = actor->excused = true;
      return;
    case kRebind:
      return network_.rebind(actor->endpoint);
    case kDouble:
      return start_intruder(*actor);
    case kAbort:
      actor->engine->abort(timeline_.now());
      return drive(actor);
    case kQuit:
      actor->excused = true;
      return close(actor);
    default:
      return;
  }
}

void Simulation::handle_switch(const TimelineEvent& event) {
  SwitchActor& at = switches_[event.index];
  switch (event.kind) {
    case kSwitchWake:
      if (event.at != at.wake_at) return;
      at.wake_at = kNever;
      break;
    case kSwitchFreeze:
      at.frozen_until = timeline_.now() + scenario_.switch_freeze_length;
      return timeline_.add(at.frozen_until, kSwitchThaw, event.index);
    case kSwitchThaw:
      for (uint32_t packet : std::exchange(at.inbox, {})) {
        deliver_to_switch(&at, network_.packet(packet));
        network_.release(packet);
      }
      break;
    case kSwitchDie:
      at.dead = true;
      return;
    case kSwitchReturn:
      at.dead = false;
      at.engine = std::make_unique<Switch>(switch_config(200 + report_.events), timeline_.now());
      break;
    default:
      at.engine->break_all(timeline_.now(), {.cause = NF_CAUSE_DRAIN});
  }
  drive_switch(event.index);
}

// --- packets ------------------------------------------------------------------------------------

void Simulation::deliver(uint32_t index) {
  const Packet& packet = network_.packet(index);
  const uint16_t to = endpoint_of(packet.to);
  if (to < kSwitchesMax) {
    SwitchActor& at = switches_[to];
    if (timeline_.now() < at.frozen_until) return at.inbox.push_back(index);
    if (!at.dead) {
      deliver_to_switch(&at, packet);
      drive_switch(to);
    }
    return network_.release(index);
  }
  auto actor = std::find_if(actors_.begin(), actors_.end(),
                            [&](const Actor& a) { return a.endpoint == to; });
  const bool there = actor != actors_.end() && actor->engine != nullptr && !actor->dead &&
                     actor->phase != Phase::closed &&
                     binding_of(packet.to) == binding_of(network_.address(to));
  if (there && frozen(*actor)) return actor->inbox.push_back(index);
  if (there) {
    deliver_to_actor(&*actor, packet);
    drive(&*actor);
  }
  network_.release(index);
}

void Simulation::deliver_to_switch(SwitchActor* to, const Packet& packet) {
  note_seen(packet);
  to->engine->handle_packet(timeline_.now(), packet.from, datagram_of(packet));
  check_slot(dynamic_cast<const Switch*>(to->engine.get()), packet);
}

void Simulation::note_seen(const Packet& packet) {
  if (packet.forged) return;
  seen_ = packet.bytes;
  seen_to_ = packet.to;
}

void Simulation::check_slot(const Switch* at, const Packet& packet) {
  const WireView view{packet.bytes};
  if (at == nullptr || view.type() != NF_TYPE_DATA) return;
  const nf_slot_head* heads = at->slot_heads(view.stream(), view.chunk());
  if (heads == nullptr) return;
  const std::string wrong = check_heads(heads, at->size_of(view.stream()));
  if (!wrong.empty()) fail("chunk " + std::to_string(view.chunk()) + ": " + wrong);
}

void Simulation::deliver_to_actor(Actor* actor, const Packet& packet) {
  const WireView view{packet.bytes};
  if (view.type() == NF_TYPE_RESULT && !packet.forged) {
    actor->quiet_since = timeline_.now();
    actor->quiet_packets = 0;
  }
  if (scenario_.shards()) note_seen(packet);
  actor->engine->handle_packet(timeline_.now(), packet.from, datagram_of(packet));
  check_slot(actor->engine->shard(), packet);
}

// Packets from nowhere: noise, headers that nearly fit, and real packets with something changed.
void Simulation::forge() {
  if (forged_ >= scenario_.forger.packets || network_.healed()) return;
  forged_ += 1;
  std::vector<uint8_t> bytes(NF_HEADER_BYTES + forger_random_.below(64));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(forger_random_.next());
  const uint64_t kind = forger_random_.below(5);
  if (kind >= 1) {
    bytes[0] = NF_MAGIC >> 8;
    bytes[1] = NF_MAGIC & 255;
    bytes[2] = NF_VERSION;
  }
  bool replay = false;
  if (kind >= 3 && !scenario_.forger.blind && !seen_.empty()) {
    bytes = seen_;
    replay = kind == 4;  // byte for byte, from another address
    // What it makes of one has a right CRC, so that only the tag gives it away.
    if (!replay) {
      bytes[4 + forger_random_.below(NF_CRC_COVERS_BYTES - 4)] ^=
          static_cast<uint8_t>(1u << forger_random_.below(8));
      const Key guess{forger_random_.next(), forger_random_.next()};
      const bool body = bytes.size() > NF_HEADER_BYTES;
      seal_packet(bytes.data(), body ? bytes.data() + NF_HEADER_BYTES : nullptr,
                  bytes.size() - NF_HEADER_BYTES, &guess);
    }
  }
  const uint64_t victim = forger_random_.below(actors_.size() + switches_.size());
  const Address nowhere = make_address(60'000, 0);
  // A copy of a tagged packet is as good as a duplicate: replays go where duplicates may go.
  const Address to =
      replay ? seen_to_
             : network_.address(static_cast<uint16_t>(
                   victim < switches_.size() ? victim : kSwitchesMax + victim - switches_.size()));
  network_.inject(1 + forger_random_.between(0, kMillisecond), nowhere, to, bytes);
  timeline_.add(timeline_.now() + 1 + forger_random_.between(0, scenario_.forger.interval_max),
                kForge, 0);
}

// --- the application ----------------------------------------------------------------------------

void Simulation::start(Actor* actor) {
  open(actor, actor->plan->config);
  arm(actor, 0);
  drive(actor);
}

void Simulation::open(Actor* actor, const WorkerConfig& config) {
  actor->engine =
      std::make_unique<Member>(MemberConfig{.worker = config,
                                            .has_shard = scenario_.shards(),
                                            .shard = switch_config(100 + index_of(*actor))},
                               timeline_.now());
  actor->engine->connect(timeline_.now(), aggregators_of(*actor));
  actor->parts.resize(actor->engine->lanes());
  actor->phase = Phase::alive;
  actor->give_up_at = timeline_.now() + kJoinPatience;
  timeline_.add(actor->give_up_at, kStep, index_of(*actor));
}

std::vector<Aggregator> Simulation::aggregators_of(const Actor& actor) const {
  std::vector<Aggregator> found;
  const WorkerConfig& config = actor.plan->config;
  for (uint16_t i = 0; i < switches_.size(); ++i)
    if (!scenario_.tree() || i == actor.plan->attached_to)
      found.push_back({.address = network_.address(i),
                       .payload_bytes_max = config.payload_bytes_max,
                       .window_max = config.window_max});
  if (!scenario_.shards()) return found;
  const GroupPlan& group = group_of(actor);
  for (uint16_t rank = 0; rank < group.size; ++rank)
    found.push_back({.address = network_.address(actors_[group.first_worker + rank].endpoint),
                     .payload_bytes_max = config.payload_bytes_max,
                     .window_max = config.window_max,
                     .host_rank = rank});
  return found;
}

// Schedules what the plan has for the time after `sequence` was submitted.
void Simulation::arm(Actor* actor, uint32_t sequence) {
  const WorkerPlan& plan = *actor->plan;
  const auto at = [&](const Trigger& trigger, Kind kind) {
    if (trigger.sequence == sequence)
      timeline_.add(timeline_.now() + trigger.after, kind, index_of(*actor));
  };
  at(plan.death, kDie);
  at(plan.abort, kAbort);
  at(plan.quit, kQuit);
  at(plan.double_start, kDouble);
  for (const Trigger& rebind : plan.rebinds) at(rebind, kRebind);
  for (const Trigger& freeze : plan.freezes) {
    if (freeze.sequence == sequence) actor->freeze_length = freeze.length;
    at(freeze, kFreeze);
  }
  for (const Trigger& pause : plan.pauses)
    if (pause.sequence == sequence && pause.length > 0) {
      actor->pausing = true;
      timeline_.add(timeline_.now() + pause.length, kStep, index_of(*actor));
    }
}

void Simulation::step(Actor* actor) {
  if (actor->phase == Phase::unborn) return start(actor);
  if (actor->phase == Phase::leaving) {
    if (timeline_.now() >= actor->left_at + kLeaveLinger) actor->phase = Phase::closed;
    return;
  }
  if (frozen(*actor)) return timeline_.add(actor->frozen_until, kStep, index_of(*actor));
  const WorkerState state = actor->engine->state();
  if (!actor->fate.settled && state != WorkerState::broken) {
    if (timeline_.now() >= actor->give_up_at) close(actor);
    return;
  }
  if (state == WorkerState::breaking) return;
  if (state == WorkerState::broken) return close(actor);
  actor->pausing = false;
  const auto& plans = group_of(*actor).collectives;
  while (!actor->pausing && actor->submitted < plans.size() &&
         actor->submitted - actor->finished < actor->plan->depth &&
         actor->engine->state() == WorkerState::active)
    submit_next(actor);
  drive(actor);
  const bool done = actor->finished == plans.size() && actor->phase == Phase::alive;
  if (!done) return;
  if (actor->left_at == 0) {
    actor->left_at = timeline_.now() + actor->plan->leave_after;
    if (actor->plan->leave_after > 0) return timeline_.add(actor->left_at, kStep, index_of(*actor));
  }
  if (timeline_.now() >= actor->left_at) close(actor);
}

void Simulation::submit_next(Actor* actor) {
  const uint32_t sequence = ++actor->submitted;
  const CollectivePlan plan = believed_plan(scenario_, *actor->plan, sequence);
  actor->quiet_since = timeline_.now();
  actor->quiet_packets = 0;
  Outcome& outcome = actor->fate.outcomes[sequence - 1];
  if (plan.skipped) {
    // The odd rank that skips what others reduce has no outcome to compare.
    const bool odd = sequence == actor->plan->odd_sequence;
    outcome = odd ? Outcome::none : Outcome::ok;
    actor->finished += 1;
    Collective skipped;
    skipped.elements = 0;
    if (actor->engine->skip(fingerprint_of(skipped, NF_KIND_BROADCAST)) != sequence)
      fail("a skipped collective took another number");
    arm(actor, sequence);
    return;
  }
  outcome = Outcome::pending;
  auto [entry, fresh] = actor->tensors.try_emplace(sequence, plan, actor->plan->config.rank);
  Collective what;
  what.data = entry->second.data();
  what.elements = plan.elements;
  what.op = plan.op;
  what.dtype = plan.dtype;
  what.tensor_dtype = plan.dtype;
  what.mode = plan.mode;
  note_parts(actor, sequence, what);
  if (actor->plan->timeout > 0) what.deadline = timeline_.now() + actor->plan->timeout;
  if (actor->engine->submit(timeline_.now(), what) != sequence)
    fail("a collective took another number");
  arm(actor, sequence);
  drain_events(actor);
}

void Simulation::on_completed(Actor* actor, const WorkerEvent& event) {
  const auto entry = actor->tensors.find(event.sequence);
  if (entry == actor->tensors.end()) return fail("an outcome nobody asked for");
  GuardedTensor& tensor = entry->second;
  Outcome& outcome = actor->fate.outcomes[event.sequence - 1];
  if (outcome != Outcome::pending) return fail("a second outcome of a collective");
  outcome = event.ok ? Outcome::ok : Outcome::failed;
  actor->finished += 1;
  std::string wrong = tensor.check_guards();
  if (event.ok) {
    const auto& reference = references_[actor->plan->group][event.sequence - 1];
    wrong = event.sequence == actor->plan->odd_sequence
                ? "a collective that ranks disagree on succeeded"
                : tensor.check_result(reference.tensor);
  }
  if (!wrong.empty())
    fail("rank " + std::to_string(actor->fate.rank) + ", collective " +
         std::to_string(event.sequence) + ": " + wrong);
  if (actor->plan->scribbles)
    std::fill_n(tensor.data(), tensor.plan.elements * element_bytes(tensor.plan), uint8_t{0x5A});
  const Nanos think = actor->plan->think_max == 0 ? 0 : random_.between(0, actor->plan->think_max);
  timeline_.add(timeline_.now() + think, kStep, index_of(*actor));
}

void Simulation::close(Actor* actor) {
  actor->phase = Phase::leaving;
  actor->left_at = timeline_.now();
  actor->engine->leave(timeline_.now());
  timeline_.add(timeline_.now() + kLeaveLinger, kStep, index_of(*actor));
  drive(actor);
}

void Simulation::start_intruder(const Actor& twin) {
  Actor& actor = actors_.emplace_back();
  WorkerConfig config = twin.plan->config;
  config.nonce += 1;
  actor.plan = twin.plan;
  actor.intruder = actor.excused = true;
  actor.fate.outcomes.resize(group_of(actor).collectives.size(), Outcome::none);
  actor.endpoint = network_.add_endpoint(twin.plan->up, twin.plan->down);
  open(&actor, config);
  drive(&actor);
}

// --- drivers ------------------------------------------------------------------------------------

void Simulation::thaw(Actor* actor) {
  if (frozen(*actor)) return;
  for (uint32_t packet : std::exchange(actor->inbox, {})) {
    if (actor->engine != nullptr) deliver_to_actor(actor, network_.packet(packet));
    network_.release(packet);
  }
  if (actor->engine != nullptr) drive(actor);
}

void Simulation::drive(Actor* actor) {
  if (actor->dead || frozen(*actor) || actor->phase == Phase::closed) return;
  Member& engine = *actor->engine;
  const Nanos now = timeline_.now();
  if (engine.poll_timeout() <= now) engine.handle_timeout(now);
  Transmit transmit;
  while (engine.poll_transmit(now, &transmit)) {
    observe_sent(actor, transmit);
    send(network_.address(actor->endpoint), transmit);
  }
  if (engine.poll_timeout() <= now)
    fail("rank " + std::to_string(actor->fate.rank) + " asks to be called again at once");
  drain_events(actor);
  schedule_wake(actor);
}

void Simulation::observe_sent(Actor* actor, const Transmit& transmit) {
  const WireView view{head_of(transmit)};
  for (size_t lane = 0; lane < actor->engine->lanes() && view.type() == NF_TYPE_DATA; ++lane)
    if (actor->engine->lane(lane).settlement().stream == view.stream())
      check_kept(actor, lane, view.chunk());
  if (actor->engine->state() != WorkerState::active ||
      scenario_.has(kNetworkFaults | kFaultRebind | kFaultRestart))
    return;
  const Nanos waited = timeline_.now() - actor->quiet_since - kQuietGrace;
  if (waited <= 0) return;
  actor->quiet_packets += 1;
  if (actor->quiet_packets >
      10 * actor->engine->lanes() * static_cast<uint64_t>(waited / kSecond + 1))
    fail("rank " + std::to_string(actor->fate.rank) + " does not wait quietly");
}

// Where the parts of a collective lie on the lanes, in the eyes of a worker, who may be the odd
// one. Of fixed32 all have to agree on the first chunk before any knows how many there are.
void Simulation::note_parts(Actor* actor, uint64_t sequence, const Collective& what) {
  const Member& engine = *actor->engine;
  size_t least = NF_PAYLOAD_BYTES_MAX;
  for (size_t lane = 0; lane < engine.lanes(); ++lane)
    least = std::min<size_t>(least, engine.lane(lane).settlement().payload_bytes);
  const Partition partition =
      partition_of(what, engine.lanes(), static_cast<uint32_t>(least), sequence);
  const Reference& whole = references_[actor->plan->group][sequence - 1];
  const bool odd = actor->plan->odd_sequence == sequence;
  for (size_t lane = 0; lane < engine.lanes(); ++lane) {
    const std::optional<Collective> part = part_of(what, partition, lane);
    if (!part) continue;
    auto& parts = actor->parts[lane];
    const size_t payload = engine.lane(lane).settlement().payload_bytes;
    const size_t bytes = nf_dtype_bytes(what.dtype);
    Part noted{.first_chunk = parts.empty() ? scenario_.switch_config.first_chunk
                                            : parts.rbegin()->second.first_chunk +
                                                  parts.rbegin()->second.chunks,
               .chunks = 0,
               .reference = {}};
    const auto first = static_cast<uint64_t>(part->data - what.data) / bytes;
    if (!odd) noted.reference = whole.part(first, part->elements);
    const uint64_t per_chunk = payload / bytes;
    noted.chunks =
        odd ? (part->elements + per_chunk - 1) / per_chunk : noted.reference.chunks(payload);
    parts.emplace(sequence, std::move(noted));
  }
}

// Invariant 9: who sends chunk c keeps the result of c - window, outside the user's tensor.
//
// Where a rank skips a collective, its chunks are shifted against the others': one in the middle of
// a later collective may complete with parts that do not belong together. That collective never
// succeeds, since its first or last chunk meets another collective's on some rank.
void Simulation::check_kept(Actor* actor, size_t index, uint64_t chunk) {
  const GroupPlan& group = group_of(*actor);
  for (uint32_t rank = 0; rank < group.size; ++rank) {
    const WorkerPlan& member = scenario_.workers[group.first_worker + rank];
    if (member.odd_sequence != kNoSequence && member.oddity == Oddity::skip) return;
  }
  const Worker& lane = actor->engine->lane(index);
  const uint64_t window = lane.settlement().window;
  if (chunk - scenario_.switch_config.first_chunk < window) return;
  const uint64_t before = chunk - window;
  size_t bytes = 0;
  if (lane.kept_result(chunk, &bytes) != nullptr) return;  // sent again after a restart
  const uint8_t* kept = lane.kept_result(before, &bytes);
  if (kept == nullptr) return fail("a chunk left the window before its predecessor's result");
  for (const auto& [sequence, part] : actor->parts[index]) {
    if (before - part.first_chunk >= part.chunks) continue;
    const auto expected =
        part.reference.chunk(before - part.first_chunk, lane.settlement().payload_bytes);
    if (!std::equal(kept, kept + bytes, expected.begin(), expected.end()))
      fail("rank " + std::to_string(actor->fate.rank) + ": the kept result of chunk " +
           std::to_string(before) + " of collective " + std::to_string(sequence) + " is another");
  }
}

void Simulation::drain_events(Actor* actor) {
  WorkerEvent event;
  while (actor->engine->poll_event(&event)) {
    switch (event.kind) {
      case WorkerEvent::Kind::settled:
        if (actor->intruder) fail("two engines have the same rank");
        actor->fate.settled = true;
        timeline_.add(timeline_.now(), kStep, index_of(*actor));
        break;
      case WorkerEvent::Kind::completed:
        on_completed(actor, event);
        break;
      case WorkerEvent::Kind::broken:
        if (actor->phase != Phase::alive) break;
        actor->fate.breakage = actor->engine->breakage();
        if (actor->fate.breakage.cause == NF_CAUSE_GONE &&
            (actor->fate.breakage.ranks >> actor->fate.rank & 1))
          actor->excused = true;
        timeline_.add(timeline_.now(), kStep, index_of(*actor));
        break;
      case WorkerEvent::Kind::refused:
      case WorkerEvent::Kind::left:
        actor->phase = Phase::closed;
        break;
      case WorkerEvent::Kind::late:
        break;
    }
  }
  const WorkerState state = actor->engine->state();
  if (state == WorkerState::broken && actor->phase == Phase::alive)
    timeline_.add(timeline_.now() + 1, kStep, index_of(*actor));
}

void Simulation::schedule_wake(Actor* actor) {
  const Nanos due = actor->engine->poll_timeout();
  if (due == kNever) return;
  const Nanos jitter =
      scenario_.wake_jitter_max == 0 ? 0 : random_.between(0, scenario_.wake_jitter_max);
  if (actor->wake_at <= due + jitter && actor->wake_at > timeline_.now()) return;
  actor->wake_at = due + jitter;
  timeline_.add(actor->wake_at, kWake, index_of(*actor));
}

void Simulation::send(const Address& from, const Transmit& transmit) {
  for (uint64_t left = transmit.receivers; left != 0; left &= left - 1) {
    const Address& to = transmit.addresses[std::countr_zero(left)];
    if (endpoint_of(to) < kSwitchesMax + actors_.size())  // nobody answers where the forger is
      network_.send(from, to, head_of(transmit), payload_of(transmit));
  }
}

void Simulation::drive_switch(uint32_t index) {
  SwitchActor& at = switches_[index];
  if (at.dead || timeline_.now() < at.frozen_until) return;
  const Nanos now = timeline_.now();
  if (at.engine->poll_timeout() <= now) at.engine->handle_timeout(now);
  Transmit transmit;
  while (at.engine->poll_transmit(now, &transmit))
    send(network_.address(static_cast<uint16_t>(index)), transmit);
  SwitchEvent event;
  while (at.engine->poll_event(&event)) {
  }
  const Nanos due = at.engine->poll_timeout();
  if (due <= now) fail("a switch asks to be called again at once");
  if (due == kNever || (at.wake_at <= due && at.wake_at > now)) return;
  at.wake_at = due;
  timeline_.add(due, kSwitchWake, index);
}

// --- verdicts -----------------------------------------------------------------------------------

bool Simulation::all_closed() const {
  return std::all_of(actors_.begin(), actors_.end(),
                     [](const Actor& a) { return a.dead || a.phase == Phase::closed; });
}

void Simulation::check_end() {
  for (uint32_t g = 0; g < scenario_.groups.size(); ++g) {
    std::vector<Fate> fates;
    for (Actor& actor : actors_) {
      if (actor.plan->group != g || actor.intruder) continue;
      const bool cut_off =
          scenario_.has(kFaultPartition) &&
          (actor.plan->up.blackouts.size() + actor.plan->down.blackouts.size() > 0);
      actor.fate.excused = actor.excused || cut_off;
      fates.push_back(actor.fate);
      report_.outcome += " " + std::to_string(actor.fate.breakage.cause);
    }
    report_.outcome += ";";
    const std::string wrong = check_outcomes(scenario_, g, fates);
    if (!wrong.empty()) return fail("group " + std::to_string(g) + ": " + wrong);
  }
  for (SwitchActor& at : switches_) {
    if (at.dead) continue;
    // All have left or died: a lease later the switch holds nothing of theirs.
    const Nanos end = std::max(timeline_.now(), at.frozen_until) + 2 * scenario_.lease() + kSecond;
    for (Nanos now = timeline_.now(); now <= end; now += kSecond / 4)
      at.engine->handle_timeout(now);
    if (at.engine->counters().groups_open != 0 || at.engine->counters().memory_bytes != 0)
      fail("a switch holds slots of groups that ended");
  }
}

void Simulation::fail(const std::string& what) {
  if (!report_.error.empty()) return;
  report_.error = what + " (at " + std::to_string(timeline_.now()) + " ns)\n" + describe_all();
}

std::string Simulation::describe_all() const {
  std::string text;
  for (const Actor& actor : actors_) {
    text += "group " + std::to_string(actor.plan->group) + " rank " +
            std::to_string(actor.plan->config.rank) + ": phase " +
            std::to_string(static_cast<int>(actor.phase)) + (actor.dead ? " dead" : "") +
            (actor.intruder ? " intruder" : "") + (actor.excused ? " excused" : "");
    if (actor.engine != nullptr)
      text += " state " + std::to_string(static_cast<int>(actor.engine->state())) + " pending " +
              std::to_string(actor.engine->pending()) + " cause " +
              std::to_string(actor.engine->breakage().cause);
    for (size_t lane = 0; actor.engine != nullptr && lane < actor.engine->lanes(); ++lane)
      text += (lane == 0 ? " lanes " : ",") +
              std::to_string(static_cast<int>(actor.engine->lane(lane).state()));
    text += " submitted " + std::to_string(actor.submitted) + " finished " +
            std::to_string(actor.finished) + "\n";
  }
  return text;
}

uint32_t Simulation::index_of(const Actor& actor) const {
  for (uint32_t i = 0; i < actors_.size(); ++i)
    if (&actors_[i] == &actor) return i;
  return 0;
}

bool Simulation::frozen(const Actor& actor) const {
  return timeline_.now() < actor.frozen_until;
}

const GroupPlan& Simulation::group_of(const Actor& actor) const {
  return scenario_.groups[actor.plan->group];
}

}  // namespace netfold
