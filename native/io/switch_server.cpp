#include "io/switch_server.h"

#include <unistd.h>

#include <chrono>
#include <stdexcept>

#include "core/middle_switch.h"

namespace netfold {
namespace {

constexpr Nanos kStopWithin = kSecond * 9 / 10;  // of stop(), until all members know
constexpr size_t kEventsMax = 4096;              // nobody reads them: the oldest go

std::chrono::nanoseconds nanoseconds(Nanos time) {
  return std::chrono::nanoseconds(time);
}

}  // namespace

std::unique_ptr<SwitchEngine> SwitchServer::make_engine(const SwitchServerOptions& options,
                                                        const UdpSocket& socket) {
  SwitchConfig config = options.engine;
  config.cookie_key = random_value<Key>();
  config.first_stream = random_value<uint32_t>();
  config.receive_buffer_bytes = socket.receive_buffer_bytes();
  if (options.parent_host.empty()) return std::make_unique<Switch>(config, monotonic_now());
  const UdpSocket probe =
      UdpSocket::connected(options.parent_host, options.parent_port, options.socket);
  config.payload_bytes_max = probe.payload_bytes_max();
  return std::make_unique<MiddleSwitch>(MiddleConfig{
      .parent = socket.address_of(options.parent_host, options.parent_port), .own = config});
}

SwitchServer::SwitchServer(const SwitchServerOptions& options)
    : process_(getpid()),
      socket_(UdpSocket::bound(options.host, options.port, options.socket)),
      port_(socket_.local_port()),
      path_(report(socket_)),
      engine_(make_engine(options, socket_)),
      pump_(engine_.get(), &socket_) {
  thread_ = start_background_thread("netfold-switch", [this] { run(); });
}

SwitchServer::~SwitchServer() {
  stop();
}

bool SwitchServer::orphaned() const noexcept {
  return getpid() != process_;
}

SwitchServer::Lock SwitchServer::lock() {
  if (orphaned()) throw std::runtime_error("netfold: this switch belongs to the parent process");
  return mutex_.lock_as_caller();
}

void SwitchServer::run() {
  Lock lock = mutex_.unlocked();
  lock.lock();
  while (!finished()) {
    const Nanos wakes_at = std::min(pump_.due(), stop_at_);
    const bool for_writing = pump_.wants_to_write();
    lock.unlock();
    sleep_until(wakes_at, &wakeup_, socket_.descriptor(), for_writing);
    mutex_.lock_as_driver(&lock);
    pump_.turn();
    take_events();
  }
  ended_ = true;
  socket_.close();
  changed_.notify_all();
}

bool SwitchServer::finished() const {
  if (stop_at_ != kNever) return !engine_->announcing() || monotonic_now() >= stop_at_;
  return draining_ && engine_->drained();
}

void SwitchServer::take_events() {
  SwitchEvent event;
  bool any = false;
  while (engine_->poll_event(&event)) {
    if (events_.size() == kEventsMax) events_.erase(events_.begin());
    events_.push_back(std::move(event));
    any = true;
  }
  if (any) changed_.notify_all();
}

bool SwitchServer::wait(Nanos timeout) {
  Lock held = lock();
  changed_.wait_for(held, nanoseconds(std::min(timeout, kSlice)),
                    [this] { return ended_ || !events_.empty(); });
  return ended_;
}

std::vector<SwitchEvent> SwitchServer::events() {
  Lock held = lock();
  return std::exchange(events_, {});
}

void SwitchServer::drain() {
  Lock held = lock();
  draining_ = true;
  engine_->drain();
  wakeup_.signal();
}

void SwitchServer::stop() {
  Lock held = lock();
  if (stop_at_ == kNever) {
    const Nanos now = monotonic_now();
    stop_at_ = later(now, kStopWithin);
    engine_->break_all(now, {.cause = NF_CAUSE_DRAIN});
    wakeup_.signal();  // it sends
  }
  changed_.wait(held, [this] { return ended_; });
  if (std::exchange(joined_, true)) return;
  held.unlock();
  thread_.join();
}

Counters SwitchServer::counters() {
  Lock held = lock();
  Counters result;
  add_counters(engine_->counters(), &result);
  add_counters(socket_.counters(), &result);
  add_counters(pump_.outbox(), &result);
  result["short_datagrams"] = pump_.short_datagrams();
  return result;
}

Report SwitchServer::path() {
  Lock held = lock();
  Report result = path_;
  result["gso"] = socket_.gso();
  return result;
}

}  // namespace netfold
