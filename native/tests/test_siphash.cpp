#include "core/siphash.h"

#include <array>

#include "tests/check.h"

namespace {

// Reference outputs (vectors_sip64 of the authors' C code) for key 00 01 .. 0f and the inputs
// empty, 00, 00 01, ...
constexpr std::array<uint64_t, 16> kReference = {
    0x726FDB47DD0E0E31, 0x74F839C593DC67FD, 0x0D6C8009D9A94F5A, 0x85676696D7FB7E2D,
    0xCF2794E0277187B7, 0x18765564CD99A68D, 0xCBC9466E58FEE3CE, 0xAB0200F58B01D137,
    0x93F5F5799A932462, 0x9E0082DF0BA9E4B0, 0x7A5DBBC594DDB9F3, 0xF4B32F46226BADA7,
    0x751E8FBC860EE5FB, 0x14EA5627C0843D90, 0xF723CA908E7AF2EE, 0xA129CA6149BE45E5};

}  // namespace

int main() {
  const netfold::Key key{0x0706050403020100, 0x0F0E0D0C0B0A0908};
  std::array<uint8_t, 64> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  for (size_t size = 0; size < kReference.size(); ++size) {
    CHECK(netfold::siphash(key, bytes.data(), size) == kReference[size]);
  }

  // Every offset gives the same result; every bit of the key and of the input matters.
  std::array<uint8_t, 64 + 8> moved{};
  const uint64_t whole = netfold::siphash(key, bytes.data(), 56);
  for (size_t offset = 0; offset < 8; ++offset) {
    std::memcpy(moved.data() + offset, bytes.data(), 56);
    CHECK(netfold::siphash(key, moved.data() + offset, 56) == whole);
  }
  for (size_t bit = 0; bit < 56 * 8; ++bit) {
    auto changed = bytes;
    changed[bit / 8] = static_cast<uint8_t>(changed[bit / 8] ^ (1U << (bit % 8)));
    CHECK(netfold::siphash(key, changed.data(), 56) != whole);
  }
  for (unsigned bit = 0; bit < 64; ++bit) {
    const uint64_t flip = uint64_t{1} << bit;
    CHECK(netfold::siphash({key.low ^ flip, key.high}, bytes.data(), 56) != whole);
    CHECK(netfold::siphash({key.low, key.high ^ flip}, bytes.data(), 56) != whole);
  }
  return 0;
}
