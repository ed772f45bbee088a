// The little that netfold asks of the operating system besides UDP.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "core/types.h"

namespace netfold {

// A blocked caller comes back this often, so that Python can run signal handlers: a signal that
// came just before the caller slept, or to another thread, does not wake it.
inline constexpr Nanos kSlice = 100 * kMillisecond;

// CLOCK_MONOTONIC: it stands still while the machine sleeps, so leases do too.
[[nodiscard]] Nanos monotonic_now() noexcept;

// From the kernel's random number generator.
void random_bytes(void* out, size_t bytes);

template <class T>
[[nodiscard]] T random_value() {
  T value;
  random_bytes(&value, sizeof value);
  return value;
}

// `now` + `wait` without overflow; kNever stays never.
[[nodiscard]] constexpr Nanos later(Nanos now, Nanos wait) noexcept {
  return wait >= kNever - now ? kNever : now + wait;
}

// Throws std::system_error for `error`, an errno; it becomes OSError in Python.
[[noreturn]] void throw_system_error(int error, const std::string& what);

// A thread in which no signal handler runs: those belong to the application's own threads.
[[nodiscard]] std::thread start_background_thread(const char* name, std::function<void()> body);

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int value) noexcept : value_(value) {}
  FileDescriptor(FileDescriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~FileDescriptor();

  [[nodiscard]] int get() const noexcept { return value_; }

 private:
  int value_ = -1;
};

// Wakes one thread out of sleep_until(), also when it is not there yet.
class Wakeup {
 public:
  Wakeup();

  void signal() noexcept;
  void clear() noexcept;
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

 private:
  FileDescriptor descriptor_;
};

// Sleeps until `wakeup` is signalled (and clears it), `socket` (-1: none) has something to read or,
// if asked, room to write, or it is `deadline`. False: a signal handler ran.
bool sleep_until(Nanos deadline, Wakeup* wakeup, int socket, bool for_writing) noexcept;

}  // namespace netfold
