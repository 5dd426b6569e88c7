// On-disk structures of pack and index files; docs/store-format.md describes every byte. All integers
// little-endian.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dedup_store/hashing.h"
#include "dedup_store/store.h"

namespace rekindle::store {

inline constexpr uint32_t kFormatVersion = 1;

// A frame is up to this many pages, stored together: raw, or compressed as one.
inline constexpr uint32_t kMaxFramePages = 32;

using StoreUuid = std::array<uint8_t, 16>;

struct PackHeader {
  char magic[8];  // kPackMagic
  uint32_t version;
  uint32_t page_size;
  uint8_t store_uuid[16];
  uint64_t pack_id;
  int64_t created_unix_ns;
  uint8_t seed[32];  // of the store's fingerprints, so that packs can be read without the rest
  Hash128 checksum;  // of all before it
};
static_assert(sizeof(PackHeader) == 96);
inline constexpr char kPackMagic[8] = {'R', 'K', 'P', 'A', 'C', 'K', '\r', '\n'};
inline constexpr uint64_t kPackHeaderBytes = 4096;  // data begins here

enum class Codec : uint8_t { kRaw = 0, kZstd = 1 };

struct FrameEntry {
  uint64_t offset_and_codec;  // low 56 bits: offset in the file; high 8: Codec
  uint32_t stored_bytes;
  uint32_t first_page;  // number within the pack; the next entry's first_page ends this frame
  uint64_t offset() const { return offset_and_codec & ((uint64_t{1} << 56) - 1); }
  Codec codec() const { return static_cast<Codec>(offset_and_codec >> 56); }
};
static_assert(sizeof(FrameEntry) == 16);

enum PackSection : uint32_t {
  kFrames,        // FrameEntry x frames, ascending in offset and first_page
  kFingerprints,  // Hash128 x pages
  kDigests,       // Hash128 x pages
  kDigestTable,   // uint32 x slots: digest to page number
  kManifest,      // the image that this pack was written for
  kImageRecord,   // its catalog record
  kSectionCount,
};

struct SectionEntry {
  uint64_t offset;
  uint64_t bytes;
  Hash128 checksum;
};
static_assert(sizeof(SectionEntry) == 32);

struct PackFooter {
  char magic[8];  // kFooterMagic
  uint32_t version;
  uint32_t section_count;
  uint64_t pack_id;
  uint32_t frames;
  uint32_t pages;
  uint64_t data_end;      // frames lie in [4096, data_end)
  uint64_t stored_bytes;  // sum of the frames' stored_bytes
  SectionEntry sections[kSectionCount];
  Hash128 checksum;  // of all before it
};
static_assert(sizeof(PackFooter) == 256);  // the last 256 bytes of the file
inline constexpr char kFooterMagic[8] = {'R', 'K', 'P', 'A', 'C', 'K', 'E', 'N'};

// The digest table: slots = pages x 4 / 3 + 1, linear probing from SlotOf. A slot is 0 or (tag << page_bits |
// page + 1).
struct DigestTableShape {
  explicit DigestTableShape(uint32_t pages) : slots(uint64_t{pages} * 4 / 3 + 1) {
    while (page_bits < 32 && (uint64_t{1} << page_bits) < uint64_t{pages} + 1) ++page_bits;
  }
  uint64_t SlotOf(const Hash128& digest) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(digest.lo) * slots) >> 64);
  }
  uint32_t Value(const Hash128& digest, uint32_t page) const { return Tag(digest) | (page + 1); }
  uint32_t Tag(const Hash128& digest) const {
    return page_bits >= 32 ? 0 : static_cast<uint32_t>(digest.hi) << page_bits;
  }
  uint32_t PageMask() const { return page_bits >= 32 ? ~uint32_t{0} : (uint32_t{1} << page_bits) - 1; }
  uint64_t slots;
  int page_bits = 1;
};

std::vector<uint32_t> BuildDigestTable(const std::vector<Hash128>& digests);

// An index file covers many packs: entries sorted by the digests' first 8 bytes, and a directory of buckets.
struct IndexHeader {
  char magic[8];  // kIndexMagic
  uint32_t version;
  uint32_t bucket_bits;
  uint64_t index_id;
  uint64_t entries;
  uint64_t packs;         // uint64 pack ids follow the header
  uint64_t buckets_at;    // uint32 x (2^bucket_bits + 1): first entry of each bucket
  uint64_t entries_at;    // IndexEntry x entries
  Hash128 body_checksum;  // of the file from the end of the header on
  Hash128 checksum;       // of all before it
};
static_assert(sizeof(IndexHeader) == 88);
inline constexpr char kIndexMagic[8] = {'R', 'K', 'I', 'N', 'D', 'E', 'X', '\n'};

struct IndexEntry {
  uint64_t prefix;  // Hash128::lo of the digest
  uint32_t pack;    // position in the list of pack ids
  uint32_t page;
};
static_assert(sizeof(IndexEntry) == 16);

std::string PackFileName(uint64_t pack_id);
std::string IndexFileName(uint64_t index_id);
// The id of a pack or index file's name; 0 when it is none.
uint64_t IdOfFileName(absl::string_view name, absl::string_view suffix);
// Random, never 0.
uint64_t NewFileId();

}  // namespace rekindle::store
