// The hashes of the store, each for what it is good at:
// - fingerprint: 64-bit XXH3 keyed with the store's secret, of a page or of a frame. Runs at memory speed;
// tells
//   whether a page is the one at the same address in the parent, finds candidates for equal content (whose
//   bytes are then compared), and guards every read against damage.
// - frame digest: the first 16 bytes of the SHA-256 of a frame as it is stored. The identity of what an image
//   consists of. Of frames that must cost little it is the wide fingerprint.
// - checksum: unkeyed 128-bit XXH3 of a metadata section.
// docs/store-format.md says why each is enough. Free functions and const methods are thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

struct SHA256state_st;
struct XXH3_state_s;

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

// Fingerprints pages and frames under one store's secret.
class Fingerprinter {
 public:
  // The 192-byte XXH3 secret is SHA-256(seed || 0) .. SHA-256(seed || 5).
  explicit Fingerprinter(const StoreSeed& seed);
  uint64_t OfPage(const void* page) const { return of_page_(page, secret_); }
  uint64_t Of(const void* data, size_t size) const { return of_(data, size, secret_); }
  // 128 bits. From 241 bytes on, the low half is what Of says.
  Hash128 Wide(const void* data, size_t size) const { return wide_(data, size, secret_); }

 private:
  alignas(64) uint8_t secret_[192];
  uint64_t (*of_page_)(const void* page, const uint8_t* secret);
  uint64_t (*of_)(const void* data, size_t size, const uint8_t* secret);
  Hash128 (*wide_)(const void* data, size_t size, const uint8_t* secret);
};

// One thread's SHA-256. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  // The first 16 bytes of the digest over what Update got and `data`.
  Hash128 Truncated(const void* data, size_t size);
  // A digest over several pieces; Finish begins anew.
  void Update(const void* data, size_t size);
  std::array<uint8_t, 32> Finish();

 private:
  const std::unique_ptr<SHA256state_st> state_;
};

Hash128 Checksum(const void* data, size_t size);
inline Hash128 Checksum(absl::string_view data) { return Checksum(data.data(), data.size()); }

// The checksum of what comes piece by piece. Not thread-safe.
class RunningChecksum {
 public:
  RunningChecksum();
  ~RunningChecksum();
  RunningChecksum(const RunningChecksum&) = delete;
  RunningChecksum& operator=(const RunningChecksum&) = delete;
  void Update(const void* data, size_t size);
  void Update(absl::string_view data) { Update(data.data(), data.size()); }
  Hash128 Sum() const;  // of all so far

 private:
  XXH3_state_s* const state_;
};

bool IsZeroPage(const void* page);

// The widest implementation that this processor has is taken once, at start.
uint64_t PageFingerprintAvx2(const void* page, const uint8_t* secret);
uint64_t PageFingerprintBaseline(const void* page, const uint8_t* secret);
uint64_t FingerprintAvx2(const void* data, size_t size, const uint8_t* secret);
uint64_t FingerprintBaseline(const void* data, size_t size, const uint8_t* secret);
Hash128 WideFingerprintAvx2(const void* data, size_t size, const uint8_t* secret);
Hash128 WideFingerprintBaseline(const void* data, size_t size, const uint8_t* secret);

}  // namespace rekindle::store
