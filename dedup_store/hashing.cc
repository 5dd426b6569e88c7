#include "dedup_store/hashing.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <cstdlib>

#include "dedup_store/store.h"

namespace rekindle::store {

namespace {

// Looked up once: fetching the algorithm by name for every page costs more than hashing it.
const EVP_MD* Sha256Algorithm() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return algorithm;
}

}  // namespace

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
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    of_page_ = PageFingerprintAvx2;
    of_ = FingerprintAvx2;
  }
#endif
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) { Restart(); }
Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

void Sha256::Restart() {
  // Fails only without memory or without the algorithm; neither leaves a store that could work.
  if (context_ == nullptr || EVP_DigestInit_ex(context_, Sha256Algorithm(), nullptr) != 1) abort();
}

void Sha256::Update(const void* data, size_t size) {
  if (EVP_DigestUpdate(context_, data, size) != 1) abort();
}

std::array<uint8_t, 32> Sha256::Finish() {
  std::array<uint8_t, 32> out;
  unsigned length = 0;
  if (EVP_DigestFinal_ex(context_, out.data(), &length) != 1 || length != out.size()) abort();
  Restart();
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
