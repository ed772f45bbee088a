// What engines, sockets and threads counted, under the names that users see.
#pragma once

#include <map>
#include <string>
#include <variant>

#include "core/switch.h"
#include "core/worker.h"
#include "io/outbox.h"

namespace netfold {

using Counters = std::map<std::string, uint64_t>;
using Report = std::map<std::string, std::variant<bool, uint64_t, std::string>>;

void add_counters(const WorkerCounters& from, Counters* to);
void add_counters(const SwitchCounters& from, Counters* to);
void add_counters(const SocketCounters& from, Counters* to);
void add_counters(const OutboxCounters& from, Counters* to);

[[nodiscard]] Report report(const SwitchEvent& event);

// The part of a path report that every socket has.
[[nodiscard]] Report report(const UdpSocket& socket);

[[nodiscard]] const char* name_of(WorkerState state) noexcept;

}  // namespace netfold
