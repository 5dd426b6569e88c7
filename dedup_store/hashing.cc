#include "dedup_store/hashing.h"

// The function itself: through EVP, OpenSSL brings along all of its algorithms, three megabytes that the
// small programs would be read from disk with, and reads its configuration.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>
#include <xxhash.h>

#include <cstdlib>

#include "dedup_store/store.h"

namespace rekindle::store {

Fingerprinter::Fingerprinter(const StoreSeed& seed) {
  Sha256 sha;
  for (uint8_t i = 0; i < 6; ++i) {
    sha.Update(seed.data(), seed.size());
    sha.Update(&i, 1);
    auto part = sha.Finish();
    memcpy(secret_ + 32 * i, part.data(), part.size());
  }
  of_page_ = PageFingerprintBaseline;
  of_ = FingerprintBaseline;
  wide_ = WideFingerprintBaseline;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    of_page_ = PageFingerprintAvx2;
    of_ = FingerprintAvx2;
    wide_ = WideFingerprintAvx2;
  }
#endif
}

Sha256::Sha256() : state_(std::make_unique<SHA256_CTX>()) { SHA256_Init(state_.get()); }
Sha256::~Sha256() = default;

void Sha256::Update(const void* data, size_t size) { SHA256_Update(state_.get(), data, size); }

std::array<uint8_t, 32> Sha256::Finish() {
  std::array<uint8_t, 32> out;
  SHA256_Final(out.data(), state_.get());
  SHA256_Init(state_.get());
  return out;
}

Hash128 Sha256::Truncated(const void* data, size_t size) {
  Update(data, size);
  auto full = Finish();
  Hash128 h;
  memcpy(&h, full.data(), sizeof h);
  return h;
}

Hash128 Checksum(const void* data, size_t size) {
  XXH128_hash_t h = XXH3_128bits(data, size);
  return {h.low64, h.high64};
}

RunningChecksum::RunningChecksum() : state_(XXH3_createState()) {
  if (state_ == nullptr || XXH3_128bits_reset(state_) != XXH_OK) abort();
}

RunningChecksum::~RunningChecksum() { XXH3_freeState(state_); }

void RunningChecksum::Update(const void* data, size_t size) { (void)XXH3_128bits_update(state_, data, size); }

Hash128 RunningChecksum::Sum() const {
  XXH128_hash_t h = XXH3_128bits_digest(state_);
  return {h.low64, h.high64};
}

bool IsZeroPage(const void* page) {
  const auto* words = static_cast<const unsigned char*>(page);
  uint64_t first;
  memcpy(&first, words, sizeof first);
  if (first != 0) return false;
  return memcmp(words, words + 8, kPageSize - 8) == 0;
}

}  // namespace rekindle::store
