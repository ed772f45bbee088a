// A switch as an object with a thread: engine and UDP socket.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <memory>

#include "io/engine_mutex.h"
#include "io/pump.h"
#include "io/report.h"

namespace netfold {

struct SwitchServerOptions {
  std::string host = "0.0.0.0";  // numeric; "::" serves IPv4 as well
  uint16_t port = 0;             // 0: one that is free
  // cookie_key, first_stream and receive_buffer_bytes are filled in here.
  SwitchConfig engine;
  SocketOptions socket;
  // The switch above in a tree; without a host this one is the root.
  std::string parent_host;  // numeric
  uint16_t parent_port = 0;
};

class SwitchServer {
 public:
  explicit SwitchServer(const SwitchServerOptions& options);
  ~SwitchServer();

  // For each method src/netfold/_native.pyi says what it does.
  [[nodiscard]] uint16_t port() const noexcept { return port_; }
  bool wait(Nanos timeout);
  std::vector<SwitchEvent> events();
  void drain();
  void stop();
  Counters counters();
  Report path();

  // As Endpoint::orphaned().
  [[nodiscard]] bool orphaned() const noexcept;

 private:
  using Lock = EngineMutex::Lock;

  [[nodiscard]] Lock lock();
  void run();
  void take_events();
  [[nodiscard]] bool finished() const;
  [[nodiscard]] static std::unique_ptr<SwitchEngine> make_engine(const SwitchServerOptions& options,
                                                                 const UdpSocket& socket);

  const pid_t process_;
  UdpSocket socket_;
  const uint16_t port_;
  Report path_;

  EngineMutex mutex_;  // guards everything below, and the socket
  std::unique_ptr<SwitchEngine> engine_;
  Pump<SwitchEngine> pump_;
  std::vector<SwitchEvent> events_;
  bool draining_ = false;
  Nanos stop_at_ = kNever;  // at the latest
  bool ended_ = false;
  bool joined_ = false;
  std::condition_variable changed_;
  Wakeup wakeup_;
  std::thread thread_;
};

}  // namespace netfold
