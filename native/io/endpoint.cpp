#include "io/endpoint.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "core/kernels.h"

namespace netfold {
namespace {

// How long the I/O thread leaves the socket alone after it met a caller that drives: longer than
// the gap between two synchronous collectives, so that it stays out of a loop of them.
constexpr Nanos kStepBack = 50 * kMillisecond;
// How long members have to acknowledge that our shard is gone.
constexpr Nanos kDesertWithin = kSecond / 2;
// A switch may start a little later than its workers.
constexpr Nanos kUnreachableAfter = 3 * kSecond;

// The engine and the switch take these for granted: a Join with others is dropped as malformed.
void check(const WorkerConfig& config) {
  if (config.size < 2 || config.size > NF_CHILDREN_MAX) {
    throw std::invalid_argument("a group has 2 to " + std::to_string(NF_CHILDREN_MAX) + " members");
  }
  if (config.rank >= config.size) throw std::invalid_argument("the rank is below the group's size");
  if (config.window_max == 0) throw std::invalid_argument("a window has at least one chunk");
  if (config.job.size() > kJobNameBytesMax) throw std::invalid_argument("the job's name is long");
}

void check(const Collective& collective) {
  if (collective.elements == 0) throw std::invalid_argument("a collective has elements");
  if (!kernel_exists(collective.op, collective.dtype)) {
    throw std::invalid_argument("no kernel for this op and dtype");
  }
  const bool sums = collective.op == NF_OP_SUM || collective.op == NF_OP_AVG;
  if (collective.mode == NF_MODE_FIXED32 && !(sums && collective.dtype == NF_DTYPE_FLOAT32)) {
    throw std::invalid_argument("fixed32 sums float32");
  }
}

std::chrono::steady_clock::time_point time_point(Nanos time) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(time));
}

}  // namespace

MemberConfig Endpoint::complete(const EndpointOptions& options, const UdpSocket& socket) {
  check(options.worker);
  MemberConfig config{.worker = options.worker, .has_shard = options.has_shard, .shard = {}};
  config.worker.nonce = random_value<uint64_t>();
  config.worker.first_request = random_value<uint32_t>();
  if (!options.has_shard) return config;
  config.shard.cookie_key = random_value<Key>();
  config.shard.first_stream = random_value<uint32_t>();
  config.shard.receive_buffer_bytes = socket.receive_buffer_bytes();
  config.shard.lease = options.worker.lease;
  config.shard.has_secret = options.worker.has_secret;
  config.shard.secret = options.worker.secret;
  return config;
}

// What a lane may use of the path and of the receive buffer, which a shard leaves half of.
Aggregator Endpoint::limits(const UdpSocket& path, size_t lanes) const {
  size_t payload = path.payload_bytes_max();
  const size_t wanted = options_.worker.payload_bytes_max;
  if (wanted > 0) payload = std::min(payload, wanted) / 8 * 8;
  const size_t buffer = socket_.receive_buffer_bytes() / (options_.has_shard ? 2 : 1) / lanes;
  const size_t held = std::max<size_t>(buffer / buffer_cost(payload), 1);
  return {.address = {},
          .payload_bytes_max = static_cast<uint16_t>(payload),
          .window_max = static_cast<uint16_t>(std::min<size_t>(options_.worker.window_max, held))};
}

Endpoint::Endpoint(const EndpointOptions& options)
    : process_(getpid()),
      options_(options),
      socket_(options.port != 0 ? UdpSocket::connected(options.host, options.port, options.socket)
                                : UdpSocket::bound(options.host, 0, options.socket)),
      path_(report(socket_)),
      engine_(complete(options, socket_), monotonic_now()),
      pump_(&engine_, &socket_) {
  if (options.port != 0) {
    path_["peer"] = socket_.peer();
    path_["path_mtu"] = uint64_t{socket_.path_mtu()};
    connected_at_ = monotonic_now();
    engine_.connect(connected_at_, {limits(socket_, 1)});
  }
  thread_ = start_background_thread("netfold-io", [this] { run(); });
}

void Endpoint::connect(const std::vector<AggregatorPlace>& places) {
  Lock held = lock();
  if (places.empty()) throw std::invalid_argument("a group has at least one aggregator");
  if (connected_at_ != kNever) throw std::invalid_argument("the endpoint is connected");
  std::vector<Aggregator> aggregators;
  std::string peers;
  size_t least_mtu = SIZE_MAX;
  for (const AggregatorPlace& place : places) {
    // Only the kernel knows the path's MTU, and tells it of a connected socket.
    const UdpSocket probe = UdpSocket::connected(place.host, place.port, options_.socket);
    least_mtu = std::min(least_mtu, probe.path_mtu());
    peers += (peers.empty() ? "" : ", ") + probe.peer();
    Aggregator aggregator = limits(probe, places.size());
    aggregator.address = socket_.address_of(place.host, place.port);
    aggregator.host_rank = place.host_rank;
    aggregators.push_back(aggregator);
  }
  path_["peer"] = peers;
  path_["path_mtu"] = uint64_t{least_mtu};
  connected_at_ = monotonic_now();
  engine_.connect(connected_at_, aggregators);
  command_done(false);
}

uint16_t Endpoint::port() {
  Lock held = lock();
  return socket_.local_port();
}

Endpoint::~Endpoint() {
  close(kSecond);
}

bool Endpoint::orphaned() const noexcept {
  return getpid() != process_;
}

Endpoint::Lock Endpoint::lock() {
  if (orphaned()) throw std::runtime_error("netfold: this endpoint belongs to the parent process");
  return mutex_.lock_as_caller();
}

// ---- who drives ----

void Endpoint::run() {
  Lock lock = mutex_.unlocked();
  lock.lock();
  while (!stop_) {
    io_watches_ = !driven_;
    io_wakes_at_ = io_watches_ ? pump_.due() : monotonic_now() + kStepBack;
    const Nanos wakes_at = io_wakes_at_;
    const int descriptor = io_watches_ ? socket_.descriptor() : -1;
    const bool for_writing = pump_.wants_to_write();
    lock.unlock();
    sleep_until(wakes_at, &io_wakeup_, descriptor, for_writing);
    mutex_.lock_as_driver(&lock);
    if (!driven_) turn();
  }
}

// Drives the engine, or sleeps while another caller does, until `done`, the time is up, a signal
// came or a slice is over.
template <class Done>
void Endpoint::drive(Lock* lock, Nanos timeout, const Done& done) {
  const Nanos until = later(monotonic_now(), std::min(timeout, kSlice));
  bool undisturbed = true;
  while (!done() && undisturbed && monotonic_now() < until) {
    if (driven_) {
      ++sleeping_callers_;
      changed_.wait_until(*lock, time_point(until));
      --sleeping_callers_;
    } else {
      driven_ = true;
      undisturbed = sleep_and_turn(lock, until);
      driven_ = false;
    }
  }
  if (driven_) return;
  changed_.notify_all();  // a sleeping caller goes on
  // Else the I/O thread does: within kStepBack by itself, which is early enough where the caller
  // is about to come back or nothing is under way.
  if (sleeping_callers_ == 0 && done() && !idle() && !io_watches_) io_wakeup_.signal();
}

// As drive(), in as many turns as it takes.
template <class Done>
void Endpoint::drive_until(Lock* lock, Nanos until, const Done& done) {
  for (Nanos now = monotonic_now(); !done() && now < until; now = monotonic_now()) {
    drive(lock, until - now, done);
  }
}

bool Endpoint::sleep_and_turn(Lock* lock, Nanos until) {
  driver_wakes_at_ = std::min(until, pump_.due());
  const Nanos wakes_at = driver_wakes_at_;
  const bool for_writing = pump_.wants_to_write();
  lock->unlock();
  const bool undisturbed =
      sleep_until(wakes_at, &driver_wakeup_, socket_.descriptor(), for_writing);
  mutex_.lock_as_driver(lock);
  turn();
  return undisturbed;
}

void Endpoint::turn() {
  pump_.turn();
  take_events();
}

// Sends what a command brought about and sees to it that whoever sleeps minds the new timers.
// `deferred`: nobody needs to, the caller comes back at once to drive.
void Endpoint::command_done(bool deferred) {
  pump_.send();
  take_events();
  if (driven_) {
    if (pump_.due() < driver_wakes_at_) driver_wakeup_.signal();
  } else if (!deferred && (!io_watches_ || pump_.due() < io_wakes_at_)) {
    io_wakeup_.signal();
  }
}

bool Endpoint::idle() const {
  return engine_.pending() == 0 && engine_.state() != WorkerState::hello &&
         engine_.state() != WorkerState::breaking;
}

// ---- what the engine reports ----

void Endpoint::take_events() {
  WorkerEvent event;
  bool any = false;
  while (engine_.poll_event(&event)) {
    any = true;
    switch (event.kind) {
      case WorkerEvent::Kind::settled:
        settled_ = true;
        break;
      case WorkerEvent::Kind::refused:
        refusal_ = event.refused;
        break;
      case WorkerEvent::Kind::completed:
        finish(event.sequence, event.ok, event.bytes_done);
        break;
      case WorkerEvent::Kind::late:
        late_.push_back({event.sequence, event.ranks, engine_.progress()});
        break;
      case WorkerEvent::Kind::broken:
      case WorkerEvent::Kind::left:
        break;  // read from the engine's state
    }
  }
  if (any) changed_.notify_all();
}

void Endpoint::finish(uint64_t sequence, bool ok, uint64_t bytes_done) {
  const auto found = outcomes_.find(sequence);
  if (found == outcomes_.end()) return;  // released before it was done
  Outcome& outcome = found->second;
  outcome.status = ok ? Outcome::ok : Outcome::failed;
  outcome.bytes_done = bytes_done;
  if (outcome.watched) watched_.push_back(sequence);
}

Endpoint::Outcome& Endpoint::outcome(uint64_t sequence) {
  const auto found = outcomes_.find(sequence);
  if (found == outcomes_.end()) {
    throw UnknownSequence("no collective " + std::to_string(sequence));
  }
  return found->second;
}

// ---- joining ----

const char* Endpoint::verdict(Nanos now) const {
  if (settled_) return "settled";
  if (refusal_) return "refused";
  // It was settled and broke before we heard of either: failure() says why.
  if (engine_.breakage().cause != 0) return "settled";
  if (connected_at_ == kNever) return nullptr;
  const Nanos lease = options_.worker.lease;
  if (engine_.answered()) return now - engine_.last_heard() >= lease ? "lost" : nullptr;
  const bool refused = socket_.counters().port_refused > 0;
  if (refused && now - connected_at_ >= kUnreachableAfter) return "unreachable";
  return now - connected_at_ >= lease ? "silent" : nullptr;
}

std::string Endpoint::join(Nanos timeout) {
  Lock held = lock();
  drive(&held, timeout, [this] { return verdict(monotonic_now()) != nullptr; });
  const char* result = verdict(monotonic_now());
  if (closing_ && !settled_) throw std::runtime_error("netfold: the endpoint is closed");
  return result != nullptr ? result : "waiting";
}

// ---- collectives ----

uint64_t Endpoint::submit(const Collective& collective, Nanos timeout, bool deferred) {
  check(collective);
  Lock held = lock();
  if (closing_) throw std::runtime_error("netfold: the endpoint is closed");
  const Nanos now = monotonic_now();
  Collective with_deadline = collective;
  with_deadline.deadline = later(now, timeout);
  const uint64_t sequence = engine_.submit(now, with_deadline);
  outcomes_[sequence] = {};
  command_done(deferred);
  return sequence;
}

uint64_t Endpoint::skip(uint64_t fingerprint) {
  Lock held = lock();
  return engine_.skip(fingerprint);
}

int Endpoint::wait(uint64_t sequence, Nanos timeout) {
  Lock held = lock();
  drive(&held, timeout, [&] { return outcome(sequence).status != Outcome::pending; });
  return outcome(sequence).status;
}

int Endpoint::test(uint64_t sequence) {
  Lock held = lock();
  return outcome(sequence).status;
}

void Endpoint::release(uint64_t sequence) {
  Lock held = lock();
  outcomes_.erase(sequence);
}

void Endpoint::watch(uint64_t sequence) {
  Lock held = lock();
  Outcome& wanted = outcome(sequence);
  if (wanted.watched) return;
  wanted.watched = true;
  if (wanted.status != Outcome::pending) {
    watched_.push_back(sequence);
    changed_.notify_all();
  }
}

std::vector<uint64_t> Endpoint::next_watched(Nanos timeout) {
  Lock held = lock();
  const Nanos until = later(monotonic_now(), std::min(timeout, kSlice));
  changed_.wait_until(held, time_point(until), [this] { return !watched_.empty() || closed_; });
  return std::exchange(watched_, {});
}

uint64_t Endpoint::bytes_done(uint64_t sequence) {
  Lock held = lock();
  return outcome(sequence).bytes_done;
}

// ---- what is known ----

std::optional<Breakage> Endpoint::failure() {
  Lock held = lock();
  if (engine_.breakage().cause == 0) return std::nullopt;
  return engine_.breakage();
}

std::optional<RefusedBody> Endpoint::refusal() {
  Lock held = lock();
  return refusal_;
}

uint64_t Endpoint::joined_ranks() {
  Lock held = lock();
  return engine_.joined();
}

std::vector<LateCollective> Endpoint::late() {
  Lock held = lock();
  return std::exchange(late_, {});
}

Counters Endpoint::counters() {
  Lock held = lock();
  Counters result;
  for (size_t i = 0; i < engine_.lanes(); ++i) add_counters(engine_.lane(i).counters(), &result);
  result["collectives_ok"] = engine_.collectives_ok();  // lanes count parts
  result["collectives_failed"] = engine_.collectives_failed();
  add_counters(socket_.counters(), &result);
  add_counters(pump_.outbox(), &result);
  result["short_datagrams"] = pump_.short_datagrams();
  if (engine_.shard() == nullptr) return result;
  Counters shard;
  add_counters(engine_.shard()->counters(), &shard);
  for (const auto& [name, value] : shard) result["shard_" + name] = value;
  return result;
}

Report Endpoint::path() {
  Lock held = lock();
  Report result = path_;
  result["gso"] = socket_.gso();
  result["lanes"] = uint64_t{engine_.lanes()};
  JoinedBody settlement;
  Nanos round_trip = 0;
  for (size_t i = 0; i < engine_.lanes(); ++i) {
    if (i == 0) settlement = engine_.lane(i).settlement();
    round_trip = std::max(round_trip, engine_.lane(i).round_trip());
  }
  result["payload_bytes"] = uint64_t{settlement.payload_bytes};
  result["window"] = uint64_t{settlement.window};
  result["stream"] = uint64_t{settlement.stream};
  result["epoch"] = uint64_t{settlement.epoch};
  result["round_trip_ns"] = static_cast<uint64_t>(round_trip);
  return result;
}

std::string Endpoint::state() {
  Lock held = lock();
  return closed_ ? "closed" : name_of(engine_.state());
}

// ---- the end ----

void Endpoint::abort() {
  Lock held = lock();
  if (closing_) return;
  engine_.abort(monotonic_now());
  command_done(false);
}

void Endpoint::close(Nanos linger) {
  Lock held = lock();
  const Nanos until = later(monotonic_now(), linger);
  if (closing_) {  // another thread is at it
    changed_.wait_until(held, time_point(later(until, kSecond)), [this] { return closed_; });
    return;
  }
  closing_ = true;
  engine_.leave(monotonic_now());
  command_done(false);
  // Where nobody listens any more there is nobody to tell; one refusal may be an older packet's.
  const uint64_t refusals_max = socket_.counters().port_refused + 1;
  const auto left = [&] {
    return engine_.state() == WorkerState::left || socket_.counters().port_refused > refusals_max;
  };
  drive_until(&held, until, left);
  if (!left() && engine_.shard() != nullptr) {  // others have not left: they must know
    engine_.desert(monotonic_now());
    command_done(false);
    drive_until(&held, later(monotonic_now(), kDesertWithin),
                [&] { return !engine_.announcing(); });
  }
  stop_ = true;
  fail_pending();
  io_wakeup_.signal();
  while (driven_) {  // that caller's collective has its outcome now
    driver_wakeup_.signal();
    changed_.wait(held);
  }
  held.unlock();
  thread_.join();
  held = lock();
  socket_.close();
  closed_ = true;
  changed_.notify_all();
}

// Leaving has ended them already; this is for an engine that could not even leave.
void Endpoint::fail_pending() {
  for (auto& [sequence, outcome] : outcomes_) {
    if (outcome.status == Outcome::pending) finish(sequence, false, 0);
  }
  changed_.notify_all();
}

}  // namespace netfold
