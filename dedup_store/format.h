// On-disk structures of pack and index files; docs/store-format.md describes every byte. All integers
// little-endian.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dedup_store/hashing.h"
#include "dedup_store/store.h"

namespace rekindle::store {

inline constexpr uint32_t kFormatVersion = 3;

// A frame is up to this many pages, stored together: compressed as one, or raw. What is read and verified is
// whole frames, so a longer one costs a single page's read more.
inline constexpr uint32_t kMaxZstdFramePages = 32;
inline constexpr uint32_t kMaxFramePages = kMaxPagesOfFrame;

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

enum class Codec : uint8_t {
  kRaw = 0,
  kZstd = 1,
  kZstdOfPlanes = 2,  // a zstd frame for each of 8 planes: see transposition.h
  kRawKeyed = 3,      // raw, with a digest that costs little and means something in this store alone
};
inline bool IsRaw(Codec codec) { return codec == Codec::kRaw || codec == Codec::kRawKeyed; }

struct FrameEntry {
  uint64_t offset_and_codec;  // low 56 bits: offset in the file; high 8: Codec
  uint32_t stored_bytes;
  uint32_t first_page;   // number within the pack; the next entry's first_page ends this frame
  uint64_t fingerprint;  // of its pages together, uncompressed: every read is held against it
  uint8_t digest[16];    // see DigestOfFrame
  uint64_t offset() const { return offset_and_codec & ((uint64_t{1} << 56) - 1); }
  Codec codec() const { return static_cast<Codec>(offset_and_codec >> 56); }
};
static_assert(sizeof(FrameEntry) == 40);

// SHA-256 over a frame's stored bytes and its codec, truncated; of a kRawKeyed its wide fingerprint.
Hash128 DigestOfFrame(Sha256& sha, const Fingerprinter& fingerprinter, Codec codec,
                      absl::Span<const std::byte> stored);

// What a page is, wherever it is kept: its frame's content and the place in it.
struct PageIdentity {
  Hash128 frame;
  uint32_t index;
  friend bool operator==(const PageIdentity& a, const PageIdentity& b) {
    return a.frame == b.frame && a.index == b.index;
  }
};
// The frame of a pack's frame table that holds a page. Requires that there is one.
uint32_t FrameOfPage(absl::Span<const FrameEntry> frames, uint32_t page);
PageIdentity IdentityOfPage(absl::Span<const FrameEntry> frames, uint32_t page);

enum PackSection : uint32_t {
  kFrames,       // FrameEntry x frames, ascending in offset and first_page
  kManifest,     // the image that this pack was written for; may be empty
  kImageRecord,  // its catalog record; empty when there is no manifest
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
static_assert(sizeof(PackFooter) == 160);  // the last 160 bytes of the file
inline constexpr char kFooterMagic[8] = {'R', 'K', 'P', 'A', 'C', 'K', 'E', 'N'};

// The fingerprints of a pack's pages, in a file of their own: needed to find equal pages, never to read an
// image. The pages' fingerprints (8 bytes each) follow the header.
struct PageTableHeader {
  char magic[8];  // kPageTableMagic
  uint32_t version;
  uint32_t pages;
  uint64_t pack_id;
  Hash128 body_checksum;
  Hash128 checksum;  // of all before it
};
static_assert(sizeof(PageTableHeader) == 56);
inline constexpr char kPageTableMagic[8] = {'R', 'K', 'P', 'A', 'G', 'E', 'S', '\n'};

// An index file covers many packs: entries sorted by the pages' fingerprints, and a directory of buckets.
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
  uint64_t fingerprint;
  uint32_t pack;  // position in the list of pack ids
  uint32_t page;
};
static_assert(sizeof(IndexEntry) == 16);

std::string PackFileName(uint64_t pack_id);
std::string PageTableFileName(uint64_t pack_id);
std::string IndexFileName(uint64_t index_id);
// The id of a pack or index file's name; 0 when it is none.
uint64_t IdOfFileName(absl::string_view name, absl::string_view suffix);
// Random, never 0.
uint64_t NewFileId();

}  // namespace rekindle::store
