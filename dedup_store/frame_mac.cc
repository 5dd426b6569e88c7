#include "dedup_store/frame_mac.h"

// Not through EVP: see hashing.cc.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/aes.h>
#include <openssl/crypto.h>
#include <openssl/modes.h>

#include <cstdlib>

namespace rekindle::store {

struct FrameMac::Key {
  explicit Key(const StoreSeed& seed) {
    Sha256 sha;
    const uint8_t number = 6;  // fingerprints have 0 to 5
    sha.Update(seed.data(), seed.size());
    sha.Update(&number, 1);
    const auto bytes = sha.Finish();
    if (AES_set_encrypt_key(bytes.data(), 8 * static_cast<int>(bytes.size()), &aes) != 0) abort();
  }
  AES_KEY aes;
};

FrameMac::FrameMac(const StoreSeed& seed)
    : key_(std::make_unique<Key>(seed)),
      gcm_(CRYPTO_gcm128_new(&key_->aes, reinterpret_cast<block128_f>(AES_encrypt))) {
  if (gcm_ == nullptr) abort();
}

FrameMac::~FrameMac() { CRYPTO_gcm128_release(gcm_); }

Hash128 FrameMac::Of(absl::Span<const std::byte> data) {
  const unsigned char vector[12] = {};
  CRYPTO_gcm128_setiv(gcm_, vector, sizeof vector);
  // Fails beyond 2^61 bytes only.
  if (CRYPTO_gcm128_aad(gcm_, reinterpret_cast<const unsigned char*>(data.data()), data.size()) != 0) abort();
  Hash128 tag;
  CRYPTO_gcm128_tag(gcm_, reinterpret_cast<unsigned char*>(&tag), sizeof tag);
  return tag;
}

}  // namespace rekindle::store
