#include "core/packet.h"

#include "core/bytes.h"
#include "core/crc32c.h"

namespace netfold {
namespace {

bool type_is_known(uint8_t type) {
  return (type >= NF_TYPE_DATA && type <= NF_TYPE_VOID) ||
         (type >= NF_TYPE_HELLO && type <= NF_TYPE_ABORT);
}

void read_fields(const uint8_t* bytes, Header* header) {
  header->version = bytes[NF_OFFSET_VERSION];
  header->type = bytes[NF_OFFSET_TYPE];
  header->flags = bytes[NF_OFFSET_FLAGS];
  header->op = bytes[NF_OFFSET_OP];
  header->dtype = bytes[NF_OFFSET_DTYPE];
  header->exponent = bytes[NF_OFFSET_EXPONENT];
  header->stream = load_be<uint32_t>(bytes + NF_OFFSET_STREAM);
  header->node = load_be<uint16_t>(bytes + NF_OFFSET_NODE);
  header->ranks = load_be<uint16_t>(bytes + NF_OFFSET_RANKS);
  header->chunk = load_be<uint64_t>(bytes + NF_OFFSET_CHUNK);
  header->bitmap = load_be<uint64_t>(bytes + NF_OFFSET_BITMAP);
  header->elements = load_be<uint16_t>(bytes + NF_OFFSET_ELEMENTS);
  header->rank = load_be<uint16_t>(bytes + NF_OFFSET_RANK);
  header->counter = load_be<uint32_t>(bytes + NF_OFFSET_COUNTER);
  header->fingerprint = load_be<uint64_t>(bytes + NF_OFFSET_FINGERPRINT);
  header->collective = load_be<uint32_t>(bytes + NF_OFFSET_COLLECTIVE);
  header->crc = load_be<uint32_t>(bytes + NF_OFFSET_CRC);
  header->tag = load_be<uint64_t>(bytes + NF_OFFSET_TAG);
}

}  // namespace

size_t dtype_bytes(uint8_t dtype) noexcept {
  return dtype < NF_DTYPE_COUNT ? nf_dtype_bytes(dtype) : 0;
}

void encode_header(const Header& header, uint8_t* bytes) noexcept {
  store_be(bytes + NF_OFFSET_MAGIC, static_cast<uint16_t>(NF_MAGIC));
  bytes[NF_OFFSET_VERSION] = header.version;
  bytes[NF_OFFSET_TYPE] = header.type;
  bytes[NF_OFFSET_FLAGS] = header.flags;
  bytes[NF_OFFSET_OP] = header.op;
  bytes[NF_OFFSET_DTYPE] = header.dtype;
  bytes[NF_OFFSET_EXPONENT] = header.exponent;
  store_be(bytes + NF_OFFSET_STREAM, header.stream);
  store_be(bytes + NF_OFFSET_NODE, header.node);
  store_be(bytes + NF_OFFSET_RANKS, header.ranks);
  store_be(bytes + NF_OFFSET_CHUNK, header.chunk);
  store_be(bytes + NF_OFFSET_BITMAP, header.bitmap);
  store_be(bytes + NF_OFFSET_ELEMENTS, header.elements);
  store_be(bytes + NF_OFFSET_RANK, header.rank);
  store_be(bytes + NF_OFFSET_COUNTER, header.counter);
  store_be(bytes + NF_OFFSET_FINGERPRINT, header.fingerprint);
  store_be(bytes + NF_OFFSET_COLLECTIVE, header.collective);
  store_be(bytes + NF_OFFSET_CRC, header.crc);
  store_be(bytes + NF_OFFSET_TAG, header.tag);
}

PacketError decode_packet(const Datagram& datagram, Header* header) noexcept {
  const uint8_t* bytes = datagram.header;
  if (load_be<uint16_t>(bytes + NF_OFFSET_MAGIC) != NF_MAGIC) return PacketError::foreign;
  read_fields(bytes, header);
  if (header->version != NF_VERSION) return PacketError::version;
  bool const counted = datagram.payload == nullptr && datagram.payload_bytes > 0;
  if (!counted) {
    uint32_t const head_crc = crc32c(bytes, NF_CRC_COVERS_BYTES);
    if (crc32c(datagram.payload, datagram.payload_bytes, head_crc) != header->crc)
      return PacketError::crc;
  }
  size_t const element_bytes = dtype_bytes(header->dtype);
  if (!type_is_known(header->type) || element_bytes == 0 ||
      header->elements * element_bytes != datagram.payload_bytes)
    return PacketError::malformed;
  return PacketError::none;
}

void seal_packet(uint8_t* bytes, const uint8_t* payload, size_t payload_bytes,
                 const Key* key) noexcept {
  uint32_t crc = crc32c(bytes, NF_CRC_COVERS_BYTES);
  if (payload != nullptr) crc = crc32c(payload, payload_bytes, crc);
  store_be(bytes + NF_OFFSET_CRC, crc);
  store_be(bytes + NF_OFFSET_TAG,
           key == nullptr ? uint64_t{0} : siphash(*key, bytes, NF_TAG_COVERS_BYTES));
}

bool tag_is_valid(const uint8_t* header, const Key& key) noexcept {
  return siphash(key, header, NF_TAG_COVERS_BYTES) == load_be<uint64_t>(header + NF_OFFSET_TAG);
}

}  // namespace netfold
