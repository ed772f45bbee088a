#include "io/system.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <system_error>

namespace netfold {

Nanos monotonic_now() noexcept {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return Nanos{time.tv_sec} * kSecond + Nanos{time.tv_nsec};
}

void random_bytes(void* out, size_t bytes) {
  auto* at = static_cast<uint8_t*>(out);
  while (bytes > 0) {
    const ssize_t got = getrandom(at, bytes, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      throw_system_error(errno, "getrandom");
    }
    at += got;
    bytes -= static_cast<size_t>(got);
  }
}

void throw_system_error(int error, const std::string& what) {
  throw std::system_error(error, std::system_category(), what);
}

std::thread start_background_thread(const char* name, std::function<void()> body) {
  sigset_t blocked;
  sigfillset(&blocked);
  // Those of a thread's own faults stay, so that a crash is reported where it happened.
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigdelset(&blocked, own);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &blocked, &before);  // inherited, so that there is no gap at its start
  try {
    std::thread thread(std::move(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

FileDescriptor::~FileDescriptor() {
  if (value_ >= 0) close(value_);
}

Wakeup::Wakeup() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_.get() < 0) throw_system_error(errno, "eventfd");
}

void Wakeup::signal() noexcept {
  const uint64_t one = 1;
  // It can only fail when the counter is full, and then the sleeper is as good as awake.
  [[maybe_unused]] const ssize_t written = write(descriptor_.get(), &one, sizeof one);
}

void Wakeup::clear() noexcept {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(descriptor_.get(), &count, sizeof count);
}

bool sleep_until(Nanos deadline, Wakeup* wakeup, int socket, bool for_writing) noexcept {
  std::array<pollfd, 2> waits{};
  waits[0] = {wakeup->descriptor(), POLLIN, 0};
  waits[1] = {socket, static_cast<short>(for_writing ? POLLIN | POLLOUT : POLLIN), 0};
  timespec timeout{};
  if (deadline != kNever) {
    const Nanos left = std::max<Nanos>(deadline - monotonic_now(), 0);
    timeout.tv_sec = static_cast<time_t>(left / kSecond);
    timeout.tv_nsec = static_cast<long>(left % kSecond);
  }
  const int ready =
      ppoll(waits.data(), waits.size(), deadline == kNever ? nullptr : &timeout, nullptr);
  if (ready > 0 && waits[0].revents != 0) wakeup->clear();
  return ready >= 0;
}

}  // namespace netfold
