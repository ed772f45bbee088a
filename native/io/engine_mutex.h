// An engine belongs to whoever holds this mutex.
#pragma once

#include <atomic>
#include <mutex>

namespace netfold {

// std::mutex is not fair: a thread that drives an engine in a loop takes it again before a caller
// that waits for it has woken up. So whoever drives lets callers go first.
class EngineMutex {
 public:
  using Lock = std::unique_lock<std::mutex>;

  [[nodiscard]] Lock lock_as_caller() {
    callers_.fetch_add(1);
    Lock lock(mutex_);
    callers_.fetch_sub(1);
    callers_.notify_all();
    return lock;
  }

  // For one that drives: `lock` is this mutex's and not held.
  void lock_as_driver(Lock* lock) {
    for (int waiting = callers_.load(); waiting != 0; waiting = callers_.load()) {
      callers_.wait(waiting);
    }
    lock->lock();
  }

  [[nodiscard]] Lock unlocked() { return Lock(mutex_, std::defer_lock); }

 private:
  std::mutex mutex_;
  std::atomic<int> callers_ = 0;
};

}  // namespace netfold
