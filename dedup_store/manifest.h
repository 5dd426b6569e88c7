// What an image consists of: its objects, and for each run of pages where they lie. Self-contained: needs no
// other manifest, so that removing a parent takes nothing from its children.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/format.h"
#include "dedup_store/hashing.h"
#include "dedup_store/store.h"

namespace rekindle::store {

struct Extent {
  static constexpr uint32_t kZero = ~uint32_t{0};
  uint64_t page = 0;  // address / 4096
  uint64_t pages = 0;
  uint32_t pack = kZero;   // position in Manifest::packs; kZero: these pages are zero
  uint32_t pack_page = 0;  // number of the first page within that pack
  bool zero() const { return pack == kZero; }
};

struct PagedObject {
  std::string name;
  std::vector<Extent> extents;  // ascending, not overlapping
};

// A blob is a range of the image's blob stream, which is stored as the pages of an object of its own.
struct Blob {
  std::string name;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  Hash128 digest;  // SHA-256 of the blob, first 16 bytes
};

struct Manifest {
  std::vector<uint64_t> packs;
  std::vector<PagedObject> objects;
  std::vector<Blob> blobs;
  std::vector<Extent> blob_stream;

  // Takes packs that no extent points to off the list.
  void DropUnusedPacks();
  std::string Encode() const;  // compressed
  // DataLoss when the bytes are not a manifest: nothing out of range is ever let through.
  static absl::StatusOr<Manifest> Decode(absl::string_view encoded);

  // The image's own digest: SHA-256 over names, addresses and the identities of pages, without locations, so
  // that it stays the same wherever the pages are kept. `identity_of` is asked for every page that is not
  // zero.
  using IdentityOf = std::function<PageIdentity(uint32_t pack, uint32_t pack_page)>;
  std::array<uint8_t, 32> ContentDigest(const IdentityOf& identity_of) const;
};

// Appends `pages` pages, merging with the last extent where both address and location continue.
void AppendExtent(std::vector<Extent>& extents, const Extent& extent);

// The first of these ascending extents that ends behind `page`.
std::vector<Extent>::const_iterator FirstBehind(const std::vector<Extent>& extents, uint64_t page);

// "sha256:<hex>"
std::string DigestText(const std::array<uint8_t, 32>& digest);

}  // namespace rekindle::store
