// One member of one group as an object with a thread: engines, UDP socket, outcomes.
//
// The engine belongs to whoever holds the mutex. A thread that blocks here drives it meanwhile: it
// sleeps on the socket itself, so that a small all-reduce costs one wake-up. The I/O thread drives
// it when nobody does, so timers run whatever the application is busy with.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <optional>
#include <stdexcept>
#include <unordered_map>

#include "core/member.h"
#include "io/engine_mutex.h"
#include "io/pump.h"
#include "io/report.h"

namespace netfold {

struct AggregatorPlace {
  std::string host;  // numeric
  uint16_t port = 0;
  uint16_t host_rank = Aggregator::kNobody;
};

struct EndpointOptions {
  // Of the only switch, numeric. Without a port `host` is where this endpoint is to be reached, and
  // connect() tells it the aggregators.
  std::string host;
  uint16_t port = 0;
  bool has_shard = false;
  // nonce and first_request are drawn here; payload_bytes_max and window_max are limits, which the
  // path MTU (0: only that) and the receive buffer may lower.
  WorkerConfig worker;
  SocketOptions socket;
};

// A sequence number that was never given out or is released.
struct UnknownSequence : std::out_of_range {
  using std::out_of_range::out_of_range;
};

struct LateCollective {
  uint64_t sequence = 0;
  uint64_t missing = 0;            // bitmap of ranks
  std::vector<uint32_t> progress;  // last collective of each rank
};

class Endpoint {
 public:
  explicit Endpoint(const EndpointOptions& options);
  ~Endpoint();

  // For each method src/netfold/_native.pyi says what it does.
  void connect(const std::vector<AggregatorPlace>& places);
  uint16_t port();
  std::string join(Nanos timeout);
  uint64_t submit(const Collective& collective, Nanos timeout, bool deferred);
  uint64_t skip(uint64_t fingerprint);
  int wait(uint64_t sequence, Nanos timeout);
  int test(uint64_t sequence);
  void release(uint64_t sequence);
  void watch(uint64_t sequence);
  std::vector<uint64_t> next_watched(Nanos timeout);
  uint64_t bytes_done(uint64_t sequence);
  std::optional<Breakage> failure();
  std::optional<RefusedBody> refusal();
  uint64_t joined_ranks();
  std::vector<LateCollective> late();
  void abort();
  void close(Nanos linger);
  Counters counters();
  Report path();
  std::string state();

  // True in a child of the process that opened this: the thread is not there, the mutex may be
  // held by nobody, and destruction would hang. Every method throws, and the object must be leaked.
  [[nodiscard]] bool orphaned() const noexcept;

 private:
  using Lock = EngineMutex::Lock;

  struct Outcome {
    enum Status : uint8_t { pending, ok, failed } status = pending;  // the values of wait()
    bool watched = false;
    uint64_t bytes_done = 0;
  };

  [[nodiscard]] Lock lock();
  void run();
  template <class Done>
  void drive(Lock* lock, Nanos timeout, const Done& done);
  template <class Done>
  void drive_until(Lock* lock, Nanos until, const Done& done);
  bool sleep_and_turn(Lock* lock, Nanos until);
  void turn();
  void command_done(bool deferred);
  void take_events();
  void finish(uint64_t sequence, bool ok, uint64_t bytes_done);
  void fail_pending();
  [[nodiscard]] bool idle() const;
  [[nodiscard]] Outcome& outcome(uint64_t sequence);
  [[nodiscard]] const char* verdict(Nanos now) const;
  [[nodiscard]] Aggregator limits(const UdpSocket& path, size_t lanes) const;
  [[nodiscard]] static MemberConfig complete(const EndpointOptions& options,
                                             const UdpSocket& socket);

  const pid_t process_;
  const EndpointOptions options_;
  UdpSocket socket_;
  Report path_;  // what does not change once connected

  EngineMutex mutex_;  // guards everything below, and the socket
  Member engine_;
  Pump<Member> pump_;
  Nanos connected_at_ = kNever;
  std::unordered_map<uint64_t, Outcome> outcomes_;
  std::vector<uint64_t> watched_;  // done, and not yet told
  std::vector<LateCollective> late_;
  std::optional<RefusedBody> refusal_;
  bool settled_ = false;

  std::condition_variable changed_;  // an event was taken, a driver left, the endpoint closes
  bool driven_ = false;              // a caller drives; it alone sleeps on the socket
  size_t sleeping_callers_ = 0;      // those who wait for the one that drives
  bool io_watches_ = false;          // the I/O thread sleeps on the socket
  Nanos io_wakes_at_ = 0;
  Nanos driver_wakes_at_ = 0;
  bool closing_ = false;
  bool closed_ = false;
  bool stop_ = false;
  Wakeup io_wakeup_;
  Wakeup driver_wakeup_;
  std::thread thread_;
};

}  // namespace netfold
