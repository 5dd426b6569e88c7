// The digest of frames that must cost little: AES-256-GMAC (NIST SP 800-38D) under a key of the store's, at
// several times the speed of SHA-256. Whoever does not know the key, which lies in the store, can't make two
// contents of one tag; who knows it can. Images of such frames are known by their digest in this store alone.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/types/span.h"
#include "dedup_store/hashing.h"

struct gcm128_context;

namespace rekindle::store {

// For one thread.
class FrameMac {
 public:
  // The key is SHA-256(seed || 6).
  explicit FrameMac(const StoreSeed& seed);
  ~FrameMac();
  FrameMac(const FrameMac&) = delete;
  FrameMac& operator=(const FrameMac&) = delete;

  // The tag with an initialization vector of 12 zero bytes: tags never leave the store.
  Hash128 Of(absl::Span<const std::byte> data);

 private:
  struct Key;
  const std::unique_ptr<Key> key_;
  gcm128_context* const gcm_;
};

}  // namespace rekindle::store
