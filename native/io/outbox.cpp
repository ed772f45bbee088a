#include "io/outbox.h"

#include <algorithm>
#include <bit>

namespace netfold {
namespace {

size_t hash_pointer(const void* pointer) noexcept {
  return reinterpret_cast<uintptr_t>(pointer) * 0x9E3779B97F4A7C15 >> 56;
}

}  // namespace

Outbox::Outbox(UdpSocket* socket)
    : socket_(socket), batch_(Message::kSegmentsMax), messages_(UdpSocket::kSendBatch) {
  static_assert(UdpSocket::kSendBatch <= 256, "newest_ holds its indexes in a byte");
}

void Outbox::send() {
  for (const Transmit& transmit : std::span(batch_).first(batch_used_)) {
    if (transmit.addresses == nullptr) {
      append(nullptr, transmit);
      continue;
    }
    for (uint64_t left = transmit.receivers; left != 0; left &= left - 1) {
      append(&transmit.addresses[std::countr_zero(left)], transmit);
    }
  }
  flush();
}

void Outbox::append(const Address* to, const Transmit& transmit) {
  Message* message = open_message(to, transmit.head_bytes + transmit.payload_bytes);
  message->append(transmit.head, transmit.head_bytes, transmit.payload, transmit.payload_bytes);
}

Message* Outbox::open_message(const Address* to, size_t bytes) {
  uint8_t& newest = newest_[hash_pointer(to)];
  if (newest < used_ && messages_[newest].to == to && fits(messages_[newest], bytes)) {
    return &messages_[newest];
  }
  if (used_ == messages_.size()) flush();
  newest = static_cast<uint8_t>(used_++);
  messages_[newest].clear(to);
  return &messages_[newest];
}

bool Outbox::fits(const Message& message, size_t bytes) const {
  const bool closed = message.bytes < message.segments * message.segment_bytes;
  return socket_->gso() && !closed && bytes <= message.segment_bytes &&
         message.segments < Message::kSegmentsMax && message.bytes + bytes <= Message::kBytesMax;
}

void Outbox::flush() {
  const std::span<const Message> messages(messages_.data(), used_);
  const size_t sent = blocked() ? 0 : socket_->send(messages);
  for (const Message& message : messages.subspan(sent)) defer(message);
  used_ = 0;
}

void Outbox::defer(const Message& message) {
  if (deferred_bytes_ + message.bytes > kDeferredBytesMax) {
    counters_.packets_dropped += message.segments;
    return;
  }
  counters_.packets_deferred += message.segments;
  deferred_bytes_ += message.bytes;
  Deferred& copy = deferred_.emplace_back();
  copy.to_peer = message.to == nullptr;
  if (!copy.to_peer) copy.to = *message.to;
  copy.segment_bytes = message.segment_bytes;
  copy.bytes.reserve(message.bytes);
  for (const iovec& part : std::span(message.parts).first(message.parts_used)) {
    const auto* from = static_cast<const uint8_t*>(part.iov_base);
    copy.bytes.insert(copy.bytes.end(), from, from + part.iov_len);
  }
}

void Outbox::resume() {
  while (!deferred_.empty()) {
    const Deferred& next = deferred_.front();
    Message message;
    message.clear(next.to_peer ? nullptr : &next.to);
    for (size_t at = 0; at < next.bytes.size(); at += next.segment_bytes) {
      message.append(next.bytes.data() + at, std::min(next.segment_bytes, next.bytes.size() - at),
                     nullptr, 0);
    }
    if (socket_->send({&message, 1}) == 0) return;
    deferred_bytes_ -= next.bytes.size();
    deferred_.pop_front();
  }
}

}  // namespace netfold
