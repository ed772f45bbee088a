// A switch between workers and the root: adds what its children send, hands one sum up, multicasts
// the result that comes down. It decides nothing: every control message passes through it to the
// root, which knows each rank, and what the root says passes through it to the rank.
//
// As a pipeline without timers could do it, packets alone move the data path: it sends up again
// only what a child's Probe showed to be missing above. Its one timer frees what nobody uses.
#pragma once

#include "core/children.h"
#include "core/switch.h"

namespace netfold {

struct MiddleConfig {
  Address parent;
  SwitchConfig own;  // secret, cookie key, what it can hold; a lease without packets ends a group
};

class MiddleSwitch final : public SwitchEngine {
 public:
  explicit MiddleSwitch(const MiddleConfig& config);
  ~MiddleSwitch() override;

  void handle_packet(Nanos now, const Address& from, const Datagram& datagram) override;
  void handle_timeout(Nanos now) override;
  void drain() override { draining_ = true; }
  void break_all(Nanos now, const Breakage& why) override;

  [[nodiscard]] bool poll_transmit(Nanos now, Transmit* out) override;
  [[nodiscard]] Nanos poll_timeout() const override { return house_due_; }
  [[nodiscard]] bool poll_event(SwitchEvent* out) override;

  [[nodiscard]] bool drained() const override { return draining_ && groups_.empty(); }
  [[nodiscard]] bool announcing() const override { return false; }
  [[nodiscard]] const SwitchCounters& counters() const override { return counters_; }

 private:
  struct Group;
  struct Outgoing {
    Transmit transmit;
    Address to;
    const Group* group = nullptr;  // whose memory `transmit` points into
  };
  using GroupName = std::tuple<std::string, uint64_t, uint64_t>;  // job, incarnation, group

  [[nodiscard]] bool is_sound(const Datagram& datagram, Header* header);
  // from below
  void from_child(Nanos now, const Address& from, const Header& header, const Datagram& datagram);
  void on_hello(const Address& from, const Header& header, const Datagram& datagram);
  void on_join(Nanos now, const Address& from, const Header& header, const Datagram& datagram);
  [[nodiscard]] uint8_t admit(Nanos now, const JoinBody& body, Group** group, uint16_t* detail);
  [[nodiscard]] bool is_taken(Nanos now, uint16_t rank, uint64_t nonce, const Group& group) const;
  [[nodiscard]] Terms terms_for(const JoinBody& body) const;
  void pass_join(JoinBody body, const Header& header, const Group& group);
  void on_data(const Header& header, const Datagram& datagram, Group* group);
  void pass_probe(const Header& header, Group* group);
  void pass_control(const Address& from, const Header& header, const Datagram& datagram,
                    Group* group);
  // from above
  void from_parent(Nanos now, const Header& header, const Datagram& datagram);
  void on_cookie(const Address& from, const Datagram& datagram);
  void on_joined(const Datagram& datagram, Group* group);
  void on_result(const Header& header, const Datagram& datagram, Group* group);
  void on_have(const Header& header, Group* group);
  void on_breakage(const Datagram& datagram, Group* group);
  [[nodiscard]] Group* joining_group(const Header& header, const Datagram& datagram);
  void open_slots(const JoinedBody& body, Group* group);
  // sending
  void greet_parent();
  void send_up(const Header& header, const uint8_t* body, size_t bytes, const Key* key);
  void send_sum_up(Group* group, uint64_t chunk, uint8_t flags);
  void send_result(Group* group, uint64_t chunk, uint64_t receivers);
  void pass(const Datagram& datagram, const Address& to);
  void send_to(const Address& to, Header header, const uint8_t* body, size_t bytes, const Key* key);
  void push(Outgoing&& outgoing);
  void discard_sent();
  void close(std::map<GroupName, std::unique_ptr<Group>>::iterator group);
  void report(SwitchEvent&& event);

  const MiddleConfig config_;
  SwitchCounters counters_;
  bool draining_ = false;
  uint64_t parent_cookie_ = 0;
  Address parent_from_;  // as the parent's packets say it
  uint64_t greetings_ = 0;
  uint32_t parent_greeting_ = 0;  // counter of the Hello to it that is not answered yet
  uint8_t parent_version_ = NF_VERSION;
  Nanos house_due_ = kNever;
  std::map<GroupName, std::unique_ptr<Group>> groups_;
  std::unordered_map<uint32_t, Group*> streams_;  // of settled groups
  std::deque<Outgoing> outgoing_;
  size_t sent_ = 0;
  std::deque<SwitchEvent> events_;
};

}  // namespace netfold
