// The three hashes of the store, each for what it is good at:
// - page fingerprint: 128-bit XXH3 keyed with the store's secret. Runs at memory speed; tells whether a page
// is the
//   one at the same address in the parent, and guards every read against damage.
// - page digest: the first 16 bytes of the page's SHA-256. Finds equal content anywhere in the store.
// - checksum: unkeyed 128-bit XXH3 of a metadata section.
// docs/store-format.md says why each is enough. Free functions and const methods are thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

struct evp_md_ctx_st;

namespace rekindle::store {

struct Hash128 {
  uint64_t lo = 0, hi = 0;
  friend bool operator==(const Hash128& a, const Hash128& b) { return a.lo == b.lo && a.hi == b.hi; }
  template <typename H>
  friend H AbslHashValue(H h, const Hash128& v) {
    return H::combine(std::move(h), v.lo, v.hi);
  }
};
static_assert(sizeof(Hash128) == 16);

using StoreSeed = std::array<uint8_t, 32>;

// Fingerprints pages under one store's secret.
class PageFingerprinter {
 public:
  // The 192-byte XXH3 secret is SHA-256(seed || 0) .. SHA-256(seed || 5).
  explicit PageFingerprinter(const StoreSeed& seed);
  Hash128 Of(const void* page) const { return hash_(page, secret_); }

 private:
  alignas(64) uint8_t secret_[192];
  Hash128 (*hash_)(const void* page, const uint8_t* secret);
};

// One thread's SHA-256. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  // The digest of one page, truncated to 16 bytes.
  Hash128 Page(const void* page);
  Hash128 Truncated(const void* data, size_t size);
  // A digest over several pieces; Finish begins anew.
  void Update(const void* data, size_t size);
  std::array<uint8_t, 32> Finish();

 private:
  void Restart();
  evp_md_ctx_st* context_;
};

Hash128 Checksum(const void* data, size_t size);
inline Hash128 Checksum(absl::string_view data) { return Checksum(data.data(), data.size()); }

bool IsZeroPage(const void* page);

// The widest implementation that this processor has is taken once, at start.
Hash128 FingerprintAvx2(const void* page, const uint8_t* secret);
Hash128 FingerprintBaseline(const void* page, const uint8_t* secret);

}  // namespace rekindle::store
