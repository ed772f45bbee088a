#include "sim/scenario.h"

#include <algorithm>
#include <iterator>

namespace netfold {
namespace {

constexpr uint32_t kMillion = 1'000'000;

struct FaultDraw {
  const char* name;
  uint32_t chance;  // per million runs; of those that may break the group, its weight
};

constexpr uint32_t kFirstBreaking = 13;
constexpr FaultDraw kFaults[kFaultCount] = {
    {"loss", 350'000},
    {"burst", 150'000},
    {"oneway", 80'000},
    {"dup", 300'000},
    {"reorder", 300'000},
    {"corrupt", 250'000},
    {"delay", 250'000},
    {"late", 120'000},
    {"freeze", 150'000},
    {"forge", 250'000},
    {"double", 80'000},
    {"rebind", 150'000},
    {"switch-freeze", 60'000},
    {"frozen", 2},
    {"partition", 2},
    {"death", 5},
    {"timeout", 3},
    {"abort", 3},
    {"mismatch", 5},
    {"quit", 2},
    {"switch-death", 1},
    {"drain", 1},
    {"restart", 0},  // see draw_scenario()
};

uint32_t draw_breaking(Random* random) {
  uint32_t total = 0;
  for (uint32_t i = kFirstBreaking; i < kFaultCount; ++i) total += kFaults[i].chance;
  uint64_t at = random->below(total);
  for (uint32_t i = kFirstBreaking; i < kFaultCount; ++i) {
    if (at < kFaults[i].chance) return 1u << i;
    at -= kFaults[i].chance;
  }
  return 0;
}

uint32_t draw_faults(Random* random) {
  if (random->chance(60'000)) return 0;
  uint32_t faults = 0;
  for (uint32_t i = 0; i < kFirstBreaking; ++i) {
    if (random->chance(kFaults[i].chance)) faults |= 1u << i;
  }
  if (random->chance(500'000)) faults |= draw_breaking(random);
  if (random->chance(80'000)) faults |= draw_breaking(random);
  return faults;
}

bool parse_faults(const std::string& list, uint32_t* faults) {
  *faults = 0;
  if (list == "none") return true;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    const std::string name = list.substr(at, comma - at);
    const auto* found = std::find_if(std::begin(kFaults), std::end(kFaults),
                                     [&](const FaultDraw& f) { return name == f.name; });
    if (found == std::end(kFaults)) return false;
    *faults |= 1u << (found - std::begin(kFaults));
    at = comma + 1;
  }
  return true;
}

uint32_t per_million(Random* random, uint64_t low, uint64_t high) {
  return static_cast<uint32_t>(random->octaves(low, high));
}

Nanos draw_nanos(Random* random, Nanos low, Nanos high) {
  return static_cast<Nanos>(
      random->octaves(static_cast<uint64_t>(low), static_cast<uint64_t>(high)));
}

// Draws one scenario; each method one part of it.
class Draw {
 public:
  explicit Draw(Scenario* out) : out_(out), random_(derive_seed(out->seed, 1)) {}

  void all(uint32_t workers, uint32_t collectives) {
    draw_switch();
    draw_aggregators();
    draw_groups(workers);
    for (uint32_t g = 0; g < out_->groups.size(); ++g) draw_collectives(g, collectives);
    for (WorkerPlan& worker : out_->workers) draw_application(&worker);
    draw_network();
    draw_worker_faults();
    draw_breaking_faults();
    draw_forger();
    if (out_->switches == 1) draw_tree();
    draw_restarts();
  }

 private:
  bool has(uint32_t faults) const { return out_->has(faults); }

  WorkerPlan& victim() { return out_->workers[random_.below(out_->workers.size())]; }

  uint32_t collectives_of(const WorkerPlan& worker) const {
    return static_cast<uint32_t>(out_->groups[worker.group].collectives.size());
  }

  // Some time in the life of `worker`.
  Trigger trigger(const WorkerPlan& worker, uint32_t first) {
    Trigger drawn;
    drawn.sequence = static_cast<uint32_t>(random_.between(first, collectives_of(worker)));
    drawn.after = random_.chance(200'000) ? 0 : draw_nanos(&random_, 1000, 200 * kMillisecond);
    return drawn;
  }

  Key draw_key() { return {random_.next(), random_.next()}; }

  void draw_switch() {
    SwitchConfig& config = out_->switch_config;
    config.cookie_key = draw_key();
    config.first_stream = static_cast<uint32_t>(random_.next());
    config.node = static_cast<uint16_t>(random_.below(4));
    config.has_secret = random_.chance(200'000);
    if (config.has_secret) config.secret = draw_key();
    const uint64_t wrap = uint64_t{1} << 32;
    const uint64_t chosen = random_.below(6);
    config.first_chunk = chosen < 2   ? 0
                         : chosen < 4 ? wrap - random_.octaves(1, 2000)
                         : chosen < 5 ? (wrap >> 1) - random_.octaves(1, 2000)
                                      : random_.next() >> 1;
    config.receive_buffer_bytes =
        random_.chance(200'000) ? random_.octaves(1 << 14, 1 << 20) : uint64_t{1} << 20;
    config.window_max =
        static_cast<uint16_t>(random_.chance(500'000) ? 128 : random_.octaves(1, 128));
    short_lease_ = random_.chance(200'000);
    config.lease = short_lease_ ? 2 * kSecond : 5 * kSecond;
    out_->wake_jitter_max =
        random_.chance(500'000) ? 0 : draw_nanos(&random_, 1000, 2 * kMillisecond);
    draw_payload_scale();
  }

  void draw_aggregators() {
    const uint64_t kind = random_.below(8);
    out_->switches = kind < 4 ? 1 : kind < 6 ? static_cast<uint32_t>(random_.between(2, 3)) : 0;
    if (out_->switches > 0) {
      out_->troubled_switch = static_cast<uint32_t>(random_.below(out_->switches));
      return;
    }
    // Shards live and die with their ranks, and are found where they said they are.
    out_->faults &=
        ~(kFaultSwitchFreeze | kFaultSwitchDeath | kFaultDrain | kFaultRebind | kFaultDouble);
  }

  void draw_payload_scale() {
    const uint64_t kind = random_.below(20);
    payload_scale_ = kind < 8    ? random_.octaves(8, 64)
                     : kind < 16 ? random_.octaves(64, 512)
                     : kind < 19 ? 1408
                                 : NF_PAYLOAD_BYTES_MAX;
    if (random_.chance(200'000)) {
      out_->switch_config.payload_bytes_max =
          static_cast<uint16_t>(random_.octaves(8, NF_PAYLOAD_BYTES_MAX));
    }
  }

  void draw_groups(uint32_t workers) {
    const uint32_t groups = workers == 0 && random_.chance(200'000) ? 2 : 1;
    const bool same_job = random_.chance(500'000);
    WorkerConfig config;
    for (uint32_t g = 0; g < groups; ++g) {
      if (g == 0 || !same_job) {
        config.job = "job" + std::to_string(g);
        config.incarnation = random_.next();
        config.key = draw_key();
      }
      config.group = random_.next();
      const uint64_t kind = random_.below(10);
      const uint64_t drawn = kind < 6   ? random_.between(2, 4)
                             : kind < 9 ? random_.between(4, 8)
                                        : random_.between(9, 16);
      config.size = static_cast<uint16_t>(workers != 0  ? workers
                                          : groups == 2 ? (drawn + 3) / 2
                                                        : drawn);
      out_->groups.push_back({static_cast<uint32_t>(out_->workers.size()), config.size, {}});
      draw_workers(g, config);
    }
  }

  void draw_workers(uint32_t group, WorkerConfig config) {
    config.has_secret = out_->switch_config.has_secret;
    config.secret = out_->switch_config.secret;
    config.lease = out_->switch_config.lease;
    if (short_lease_) config.heartbeat = 400 * kMillisecond;
    if (random_.chance(300'000)) {
      config.retransmit_initial = draw_nanos(&random_, kMillisecond, 200 * kMillisecond);
    }
    const uint64_t window_scale =
        payload_scale_ > 2048 ? random_.octaves(1, 16) : random_.octaves(1, 128);
    const Nanos join_spread =
        random_.chance(200'000) ? 4 * kSecond : draw_nanos(&random_, 1000, 100 * kMillisecond);
    for (uint16_t rank = 0; rank < config.size; ++rank) {
      WorkerPlan worker;
      worker.group = group;
      config.rank = rank;
      config.nonce = random_.next();
      config.first_request = static_cast<uint32_t>(random_.next());
      config.payload_bytes_max = static_cast<uint16_t>(std::min<uint64_t>(
          NF_PAYLOAD_BYTES_MAX,
          payload_scale_ + (random_.chance(300'000) ? random_.below(payload_scale_) : 0)));
      config.window_max = static_cast<uint16_t>(std::min<uint64_t>(
          128, window_scale + (random_.chance(300'000) ? random_.below(window_scale) : 0)));
      worker.config = config;
      worker.join_at = random_.between(0, join_spread);
      out_->workers.push_back(worker);
    }
  }

  // The settlement can only be smaller, where the switch's buffer is.
  uint64_t payload_bytes(const GroupPlan& group) const {
    uint64_t bytes = out_->switch_config.payload_bytes_max;
    for (uint32_t i = 0; i < group.size; ++i) {
      bytes =
          std::min<uint64_t>(bytes, out_->workers[group.first_worker + i].config.payload_bytes_max);
    }
    return bytes & ~uint64_t{7};
  }

  void draw_collectives(uint32_t index, uint32_t wanted) {
    GroupPlan& group = out_->groups[index];
    const uint64_t count = wanted != 0 ? wanted : random_.octaves(1, 14);
    uint64_t chunks_left = random_.octaves(60, 2400) / (2 * group.size) + 1;
    const bool mixed = random_.chance(600'000);
    CollectivePlan plan;
    for (uint64_t i = 0; i < count; ++i) {
      if (i == 0 || mixed) draw_numbers(&plan);
      plan.content_seed = random_.next();
      plan.specials = random_.chance(150'000);
      plan.skipped = random_.chance(60'000);
      const uint64_t per_chunk = payload_bytes(group) / element_bytes(plan);
      const uint64_t kind = random_.below(10);
      plan.elements = kind < 3 ? 1
                      : kind < 5
                          ? 1 + random_.below(per_chunk)
                          : 1 + random_.below(per_chunk * (chunks_left / (kind < 8 ? 4 : 1) + 1));
      chunks_left -= std::min(chunks_left, (plan.elements + per_chunk - 1) / per_chunk);
      group.collectives.push_back(plan);
    }
  }

  void draw_numbers(CollectivePlan* plan) {
    constexpr uint8_t kDtypes[] = {NF_DTYPE_FLOAT32, NF_DTYPE_FLOAT32, NF_DTYPE_FLOAT32,
                                   NF_DTYPE_FLOAT32, NF_DTYPE_FLOAT64, NF_DTYPE_INT32,
                                   NF_DTYPE_INT64,   NF_DTYPE_INT16,   NF_DTYPE_INT8,
                                   NF_DTYPE_UINT8,   NF_DTYPE_BOOL};
    constexpr uint8_t kFloatOps[] = {NF_OP_SUM, NF_OP_SUM, NF_OP_AVG,
                                     NF_OP_MIN, NF_OP_MAX, NF_OP_PRODUCT};
    constexpr uint8_t kIntegerOps[] = {NF_OP_SUM,  NF_OP_MIN, NF_OP_MAX, NF_OP_PRODUCT,
                                       NF_OP_BAND, NF_OP_BOR, NF_OP_BXOR};
    plan->dtype = kDtypes[random_.below(std::size(kDtypes))];
    const bool is_float = plan->dtype == NF_DTYPE_FLOAT32 || plan->dtype == NF_DTYPE_FLOAT64;
    plan->op = is_float ? kFloatOps[random_.below(std::size(kFloatOps))]
                        : kIntegerOps[random_.below(std::size(kIntegerOps))];
    plan->mode = is_float ? NF_MODE_FLOAT32 : NF_MODE_EXACT;
    const bool sums = plan->op == NF_OP_SUM || plan->op == NF_OP_AVG;
    if (plan->dtype == NF_DTYPE_FLOAT32 && sums && random_.chance(500'000))
      plan->mode = NF_MODE_FIXED32;
  }

  void draw_application(WorkerPlan* worker) {
    worker->depth = static_cast<uint32_t>(random_.octaves(1, 8));
    worker->think_max = random_.chance(500'000) ? 0 : draw_nanos(&random_, 1000, 20 * kMillisecond);
    worker->leave_after = random_.chance(500'000) ? 0 : draw_nanos(&random_, 1000, 2 * kSecond);
    worker->scribbles = random_.chance(500'000);
    if (random_.chance(100'000)) worker->timeout = 300 * kSecond;
  }

  void draw_network() {
    out_->heal_at = draw_nanos(&random_, 200 * kMillisecond, 30 * kSecond);
    PathFaults common;
    common.delay = draw_nanos(&random_, kMicrosecond,
                              has(kFaultDelay) ? 80 * kMillisecond : 200 * kMicrosecond);
    if (random_.chance(600'000)) common.jitter_max = draw_nanos(&random_, 1, common.delay);
    draw_path_faults(&common);
    const bool all = random_.chance(500'000);
    for (WorkerPlan& worker : out_->workers) {
      for (PathFaults* path : {&worker.up, &worker.down}) {
        *path = common;
        if (all || random_.chance(300'000)) continue;
        PathFaults own;  // only delay and jitter are everybody's
        own.delay = has(kFaultDelay) ? draw_nanos(&random_, 1000, 80 * kMillisecond) : common.delay;
        own.jitter_max = common.jitter_max;
        if (random_.chance(300'000)) draw_path_faults(&own);
        *path = own;
      }
    }
    if (has(kFaultOneWay)) draw_blackout(false);
    if (has(kFaultPartition)) draw_blackout(true);
  }

  void draw_path_faults(PathFaults* path) {
    if (has(kFaultLoss)) path->loss = per_million(&random_, 1000, 200'000);
    if (has(kFaultBurst)) {
      path->burst = per_million(&random_, 500, 20'000);
      path->burst_max = draw_nanos(&random_, 100 * kMicrosecond, 500 * kMillisecond);
    }
    if (has(kFaultDuplicate)) {
      path->duplicate = per_million(&random_, 1000, 300'000);
      path->duplicate_delay_max = draw_nanos(&random_, 1, 3 * kSecond);
    }
    if (has(kFaultReorder)) {
      path->reorder = per_million(&random_, 1000, 500'000);
      path->reorder_delay_max = draw_nanos(&random_, 10 * kMicrosecond, 500 * kMillisecond);
    }
    if (has(kFaultCorrupt)) path->corrupt = per_million(&random_, 1000, 100'000);
  }

  void draw_blackout(bool beyond_lease) {
    const Nanos lease = out_->lease();
    WorkerPlan& worker = victim();
    Interval dark;
    dark.from = draw_nanos(&random_, kMillisecond, 2 * kSecond);
    dark.until = dark.from + (beyond_lease ? random_.between(lease, 3 * lease)
                                           : draw_nanos(&random_, kMillisecond, lease * 6 / 10));
    const uint64_t which = random_.below(beyond_lease ? 3 : 2);
    if (which != 1) worker.up.blackouts.push_back(dark);
    if (which != 0) worker.down.blackouts.push_back(dark);
    out_->heal_at = std::max(out_->heal_at, dark.until);
  }

  void draw_worker_faults() {
    const uint64_t repeats = 1 + random_.below(3);
    for (uint64_t i = 0; i < repeats; ++i) {
      if (has(kFaultLate)) {
        WorkerPlan& worker = victim();
        Trigger pause = trigger(worker, 0);
        pause.length = draw_nanos(&random_, 100 * kMillisecond, 40 * kSecond);
        worker.pauses.push_back(pause);
      }
      if (has(kFaultFreeze)) {
        WorkerPlan& worker = victim();
        Trigger freeze = trigger(worker, 0);
        freeze.length = draw_nanos(&random_, kMillisecond, out_->lease() * 7 / 10);
        worker.freezes.push_back(freeze);
      }
      if (has(kFaultRebind)) {
        WorkerPlan& worker = victim();
        worker.rebinds.push_back(trigger(worker, 0));
      }
    }
    if (has(kFaultDouble)) {
      WorkerPlan& worker = victim();
      worker.double_start = trigger(worker, 1);
    }
    if (has(kFaultSwitchFreeze)) {
      out_->switch_freeze_at = draw_nanos(&random_, kMillisecond, kSecond);
      out_->switch_freeze_length = draw_nanos(&random_, kMillisecond, out_->lease() * 6 / 10);
    }
  }

  void draw_breaking_faults() {
    if (has(kFaultFrozen)) {
      WorkerPlan& worker = victim();
      Trigger freeze = trigger(worker, 0);
      freeze.length = random_.between(out_->lease() * 3 / 2, 4 * out_->lease());
      worker.freezes.push_back(freeze);
    }
    if (has(kFaultDeath)) {
      const uint64_t deaths = random_.chance(800'000) ? 1 : 2;
      for (uint64_t i = 0; i < deaths; ++i) {
        WorkerPlan& worker = victim();
        worker.death = trigger(worker, 0);
      }
    }
    if (has(kFaultTimeout)) draw_timeout();
    if (has(kFaultAbort)) {
      WorkerPlan& worker = victim();
      worker.abort = trigger(worker, 0);
    }
    if (has(kFaultQuit)) {
      WorkerPlan& worker = victim();
      worker.quit = trigger(worker, 0);
    }
    if (has(kFaultMismatch)) draw_mismatch();
    if (has(kFaultSwitchDeath)) out_->switch_dies_at = draw_nanos(&random_, 1000, kSecond);
    if (has(kFaultDrain)) out_->drain_at = draw_nanos(&random_, 1000, kSecond);
  }

  // One rank is later than others are patient.
  void draw_timeout() {
    WorkerPlan& late = victim();
    Trigger pause = trigger(late, 0);
    pause.length = random_.between(10 * kSecond, 30 * kSecond);
    late.pauses.push_back(pause);
    const bool everybody = random_.chance(500'000);
    for (WorkerPlan& worker : out_->workers) {
      if (&worker == &late || worker.group != late.group) continue;
      if (everybody || random_.chance(500'000))
        worker.timeout = random_.between(kSecond, 9 * kSecond);
    }
  }

  void draw_mismatch() {
    WorkerPlan& worker = victim();
    const std::vector<CollectivePlan>& plans = out_->groups[worker.group].collectives;
    worker.odd_sequence = static_cast<uint32_t>(1 + random_.below(plans.size()));
    worker.oddity = static_cast<Oddity>(random_.below(4));
    if (worker.oddity != Oddity::skip) return;
    // Somebody must send something afterwards that shows it.
    const auto later = plans.begin() + worker.odd_sequence;
    const bool shown =
        std::any_of(later, plans.end(), [](const CollectivePlan& plan) { return !plan.skipped; });
    if (!shown) worker.oddity = Oddity::elements;
  }

  void draw_forger() {
    if (!has(kFaultForge)) return;
    out_->forger.packets = static_cast<uint32_t>(random_.octaves(10, 300));
    out_->forger.interval_max = draw_nanos(&random_, 10 * kMicrosecond, 20 * kMillisecond);
    out_->forger.blind = random_.chance(400'000);
  }

  // From a stream of its own: scenarios without a tree are what they were before there were trees.
  void draw_tree() {
    Random random(derive_seed(out_->seed, 5));
    if (!random.chance(400'000)) return;
    const uint64_t below = random.between(1, kSwitchesMax - 1);
    for (uint64_t i = 1; i <= below; ++i) {
      out_->parents.push_back(static_cast<uint16_t>(random.below(i)));
      const WorkerPlan& like = out_->workers[random.below(out_->workers.size())];
      out_->links_up.push_back(like.up);
      out_->links_down.push_back(like.down);
      out_->links_up.back().blackouts.clear();  // who is cut off is a matter of workers
      out_->links_down.back().blackouts.clear();
    }
    for (WorkerPlan& worker : out_->workers)
      worker.attached_to = static_cast<uint16_t>(random.below(below + 1));
    // Any may freeze or die; what ends at a switch below the root, ends as a rank's end.
    if (!has(kFaultDrain)) out_->troubled_switch = static_cast<uint32_t>(random.below(below + 1));
  }

  // From a stream of its own, as trees. Back early enough that members notice and come again before
  // their lease is over.
  void draw_restarts() {
    if (!has(kFaultRestart)) return;
    Random random(derive_seed(out_->seed, 6));
    if (out_->shards() || out_->tree() || has(kFaultSwitchDeath)) {
      out_->faults &= ~kFaultRestart;
      return;
    }
    Nanos at = draw_nanos(&random, kMillisecond, kSecond);
    for (uint64_t i = random.between(1, 3); i > 0; --i) {
      const Nanos away = draw_nanos(&random, kMillisecond, out_->lease() / 4);
      out_->restarts.emplace_back(at, away);
      at += away + random.between(out_->lease(), 3 * out_->lease());
    }
  }

  Scenario* const out_;
  Random random_;
  bool short_lease_ = false;
  uint64_t payload_scale_ = 8;
};

}  // namespace

const char* fault_name(uint32_t index) {
  return kFaults[index].name;
}

bool draw_scenario(uint64_t seed, uint32_t workers, uint32_t collectives,
                   const std::string& fault_list, Scenario* out) {
  out->seed = seed;
  Random random(derive_seed(seed, 0));
  out->faults = draw_faults(&random);
  if (!fault_list.empty() && !parse_faults(fault_list, &out->faults)) return false;
  // Drawn apart: the other faults of a seed stay what they were.
  if (fault_list.empty() && Random(derive_seed(seed, 6)).chance(150'000))
    out->faults |= kFaultRestart;
  Draw(out).all(workers, collectives);
  return true;
}

FoldNode Scenario::fold_tree(const GroupPlan& group, uint16_t at) const {
  FoldNode node;
  for (uint32_t rank = 0; rank < group.size; ++rank)
    if (workers[group.first_worker + rank].attached_to == at)
      node.children.push_back({.rank = rank, .children = {}});
  for (uint16_t i = 0; i < parents.size(); ++i) {
    if (parents[i] != at) continue;
    FoldNode below = fold_tree(group, static_cast<uint16_t>(i + 1));
    if (!below.children.empty()) node.children.push_back(std::move(below));
  }
  std::sort(node.children.begin(), node.children.end(),
            [](const FoldNode& a, const FoldNode& b) { return a.rank < b.rank; });
  if (!node.children.empty()) node.rank = node.children.front().rank;
  return node;
}

CollectivePlan believed_plan(const Scenario& scenario, const WorkerPlan& worker,
                             uint32_t sequence) {
  CollectivePlan plan = scenario.groups[worker.group].collectives[sequence - 1];
  if (sequence != worker.odd_sequence || plan.skipped) return plan;
  switch (worker.oddity) {
    case Oddity::op:
      plan.op = plan.op == NF_OP_MIN ? NF_OP_MAX : NF_OP_MIN;
      if (plan.mode == NF_MODE_FIXED32) plan.mode = NF_MODE_FLOAT32;
      break;
    case Oddity::dtype:
      plan.dtype = plan.dtype == NF_DTYPE_INT32 ? NF_DTYPE_INT64 : NF_DTYPE_INT32;
      plan.mode = NF_MODE_EXACT;
      if (plan.op == NF_OP_AVG) plan.op = NF_OP_SUM;
      break;
    case Oddity::elements:
      plan.elements += 1;
      break;
    case Oddity::skip:
      plan.skipped = true;
      break;
  }
  return plan;
}

std::string describe_faults(uint32_t faults) {
  std::string text;
  for (uint32_t i = 0; i < kFaultCount; ++i) {
    if ((faults >> i & 1) == 0) continue;
    if (!text.empty()) text += ' ';
    text += fault_name(i);
  }
  return text.empty() ? "none" : text;
}

}  // namespace netfold
