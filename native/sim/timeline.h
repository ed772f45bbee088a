// The virtual clock: what happens next, by time, then by the order in which it was scheduled.
#pragma once

#include <algorithm>
#include <vector>

#include "core/types.h"

namespace netfold {

struct TimelineEvent {
  Nanos at = 0;
  uint64_t order = 0;
  uint32_t kind = 0;   // of the owner of the timeline
  uint32_t index = 0;  // what it happens to
};

class Timeline {
 public:
  // Nothing happens in the past: an earlier time means now.
  void add(Nanos at, uint32_t kind, uint32_t index) {
    heap_.push_back({std::max(at, now_), next_order_++, kind, index});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  // Moves the clock to the next event; false when there is none.
  [[nodiscard]] bool pop(TimelineEvent* out) {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), later);
    *out = heap_.back();
    heap_.pop_back();
    now_ = out->at;
    return true;
  }

  [[nodiscard]] Nanos now() const { return now_; }

 private:
  static bool later(const TimelineEvent& a, const TimelineEvent& b) {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }

  std::vector<TimelineEvent> heap_;
  Nanos now_ = 0;
  uint64_t next_order_ = 0;
};

}  // namespace netfold
