// Small functions of the core, so that tests in Python can compare them with the specification.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string_view>

#include "bind/bind.h"
#include "core/crc32c.h"
#include "core/kernels.h"
#include "core/packet.h"
#include "core/slot.h"

namespace netfold {
namespace {

using Fields = std::map<std::string, uint64_t>;

const uint8_t* begin_of(const nb::bytes& bytes) {
  return static_cast<const uint8_t*>(bytes.data());
}

nb::bytes to_bytes(const std::vector<uint8_t>& bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

// Calls visit(name, field) for every field; one list for both directions.
template <class HeaderRef, class Visit>
void for_each_field(HeaderRef& header, const Visit& visit) {
  visit("version", header.version);
  visit("type", header.type);
  visit("flags", header.flags);
  visit("op", header.op);
  visit("dtype", header.dtype);
  visit("exponent", header.exponent);
  visit("stream", header.stream);
  visit("node", header.node);
  visit("ranks", header.ranks);
  visit("chunk", header.chunk);
  visit("bitmap", header.bitmap);
  visit("elements", header.elements);
  visit("rank", header.rank);
  visit("counter", header.counter);
  visit("fingerprint", header.fingerprint);
  visit("collective", header.collective);
  visit("crc", header.crc);
  visit("tag", header.tag);
}

template <class HeadRef, class Visit>
void for_each_head_field(HeadRef& head, const Visit& visit) {
  visit("owner", head.owner);
  visit("added", head.added);
  visit("received", head.received);
  visit("ranks", head.ranks);
  visit("state", head.state);
  visit("last", head.last);
}

// Reads the fields that `fields` has; KeyError for one that nobody asked for.
class Reader {
 public:
  explicit Reader(const Fields& fields) : fields_(fields) {}

  template <class T>
  void operator()(const char* name, T& field) const {
    const auto found = fields_.find(name);
    if (found == fields_.end()) return;
    field = static_cast<T>(found->second);
    if (field != found->second) throw nb::value_error(name);
    ++used_;
  }

  void finish() const {
    if (used_ != fields_.size()) throw nb::key_error("a field has no such name");
  }

 private:
  const Fields& fields_;
  mutable size_t used_ = 0;
};

auto writer(Fields* fields) {
  return [fields](const char* name, const auto& field) { (*fields)[name] = field; };
}

nb::bytes seal(const Fields& fields, const nb::bytes& payload,
               const std::optional<nb::bytes>& key) {
  Header header;
  const Reader reader(fields);
  for_each_field(header, reader);
  reader.finish();
  std::vector<uint8_t> datagram(NF_HEADER_BYTES + payload.size());
  encode_header(header, datagram.data());
  std::memcpy(datagram.data() + NF_HEADER_BYTES, payload.data(), payload.size());
  const Key used = key ? key_from(*key) : Key{};
  seal_packet(datagram.data(), datagram.data() + NF_HEADER_BYTES, payload.size(),
              key ? &used : nullptr);
  return to_bytes(datagram);
}

const char* verdict_on(const nb::bytes& bytes, const std::optional<nb::bytes>& key,
                       Header* header) {
  if (bytes.size() < NF_HEADER_BYTES) return "malformed";
  const Datagram datagram{begin_of(bytes), begin_of(bytes) + NF_HEADER_BYTES,
                          bytes.size() - NF_HEADER_BYTES};
  const PacketError error = decode_packet(datagram, header);
  if (error == PacketError::none && key && !tag_is_valid(begin_of(bytes), key_from(*key))) {
    return "tag";
  }
  constexpr std::array kNames{"ok", "foreign", "version", "malformed", "crc"};
  return kNames[static_cast<size_t>(error)];
}

std::pair<std::string, Fields> decode(const nb::bytes& bytes, const std::optional<nb::bytes>& key) {
  Header header;
  std::pair<std::string, Fields> result;
  result.first = verdict_on(bytes, key, &header);
  for_each_field(header, writer(&result.second));
  return result;
}

using Heads = std::array<nf_slot_head, 2>;

Heads read_heads(const std::vector<Fields>& fields) {
  if (fields.size() != 2) throw nb::value_error("a slot has two heads");
  Heads heads{};
  for (size_t i = 0; i < heads.size(); ++i) {
    const Reader reader(fields[i]);
    for_each_head_field(heads[i], reader);
    reader.finish();
  }
  return heads;
}

const char* name_of(nf_slot_verdict verdict) {
  constexpr std::array kNames{"first", "add", "duplicate", "serve", "late", "early"};
  return kNames[verdict];
}

std::pair<std::string, std::vector<Fields>> slot_add(const std::vector<Fields>& fields,
                                                     uint32_t stream, uint64_t chunk,
                                                     uint32_t member, uint64_t target,
                                                     uint32_t slots) {
  Heads heads = read_heads(fields);
  const uint32_t version = nf_slot_version(chunk, slots);
  const nf_slot_verdict verdict =
      nf_slot_add(&heads[version], &heads[1 - version], nf_slot_owner(stream, chunk),
                  uint64_t{1} << member, 1, member, target, slots);
  std::vector<Fields> after(heads.size());
  for (size_t i = 0; i < heads.size(); ++i) for_each_head_field(heads[i], writer(&after[i]));
  return {name_of(verdict), after};
}

std::string slot_probe(const std::vector<Fields>& fields, uint32_t stream, uint64_t chunk,
                       uint32_t member, uint32_t slots) {
  const Heads heads = read_heads(fields);
  return name_of(
      nf_slot_probe(&heads[nf_slot_version(chunk, slots)], nf_slot_owner(stream, chunk), member));
}

std::vector<KernelSet> runnable_kernel_sets() {
  std::vector<KernelSet> result;
  for (auto set = static_cast<int>(best_kernel_set()); set >= 0; --set) {
    result.push_back(static_cast<KernelSet>(set));
  }
  return result;
}

std::vector<std::string> kernel_sets() {
  std::vector<std::string> names;
  for (const KernelSet set : runnable_kernel_sets()) names.emplace_back(kernel_set_name(set));
  return names;
}

void choose_kernel_set(const std::string& name) {
  for (const KernelSet set : runnable_kernel_sets()) {
    if (name == kernel_set_name(set) && use_kernel_set(set)) return;
  }
  throw nb::value_error("this machine has no such kernel set");
}

nb::bytes fold_bytes(uint8_t op, uint8_t dtype, const nb::bytes& accumulator,
                     const nb::bytes& addend, const std::string& set) {
  const size_t size = dtype_bytes(dtype);
  if (!kernel_exists(op, dtype)) throw nb::value_error("no kernel for this op and dtype");
  if (accumulator.size() != addend.size() || accumulator.size() % size != 0) {
    throw nb::value_error("both operands have the same number of whole elements");
  }
  std::vector<uint8_t> sum(begin_of(accumulator), begin_of(accumulator) + accumulator.size());
  const KernelSet before = kernel_set();
  if (!set.empty()) choose_kernel_set(set);
  fold(op, dtype, sum.data(), begin_of(addend), sum.size() / size);
  use_kernel_set(before);
  return to_bytes(sum);
}

uint32_t crc32c_of(const nb::bytes& data, uint32_t previous) {
  return crc32c(begin_of(data), data.size(), previous);
}

uint64_t siphash_of(const nb::bytes& key, const nb::bytes& data) {
  return siphash(key_from(key), begin_of(data), data.size());
}

}  // namespace

void bind_protocol(nb::module_& module) {
  module.def("crc32c", crc32c_of, "data"_a, "previous"_a = 0);
  module.def("siphash", siphash_of, "key"_a, "data"_a);
  module.def("seal_packet", seal, "fields"_a, "payload"_a, "key"_a.none());
  module.def("decode_packet", decode, "datagram"_a, "key"_a.none());
  module.def("slot_add", slot_add, "heads"_a, "stream"_a, "chunk"_a, "member"_a, "target"_a,
             "slots"_a);
  module.def("slot_probe", slot_probe, "heads"_a, "stream"_a, "chunk"_a, "member"_a, "slots"_a);
  module.def("fold", fold_bytes, "op"_a, "dtype"_a, "accumulator"_a, "addend"_a,
             "kernel_set"_a = "");
  module.def("kernel_sets", kernel_sets);
}

}  // namespace netfold
