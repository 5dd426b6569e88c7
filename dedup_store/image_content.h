// What a new image is to hold, as noted by AddBlob and AddPages, and where each of its pages came to lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dedup_store/manifest.h"

namespace rekindle::store {

// Consecutive pages, as given to AddPages or AddParentPages.
struct ContentRange {
  uint64_t page = 0;                // address / 4096
  const std::byte* data = nullptr;  // null: what the parent has at these addresses, or zeros
  uint64_t pages = 0;
  uint32_t first_ordinal = 0;  // number of the first page within the image; of zeros none has any
  bool zero = false;           // all of them, and `data` is null
};

struct ContentObject {
  std::string name;
  std::vector<ContentRange> ranges;
};

struct NamedBlob {
  std::string name;
  std::string bytes;
};

struct ImageContent {
  std::vector<ContentObject> objects;
  std::vector<NamedBlob> blobs;  // until they are laid out
  std::string blob_stream;
  ContentObject blob_object;
  uint64_t total_pages = 0;
  uint64_t zero_pages = 0;  // of these, those of ranges of zeros
  // Pages that have a number, and so a place to be found.
  uint64_t ordinals() const { return total_pages - zero_pages; }

  // Puts the blobs into one stream of whole pages. Small ones lie close together, so that they compress as
  // one; larger ones begin at whole pages, so that equal ones are found again. Its pages are numbered after
  // all others.
  std::vector<Blob> LayOut();
};

// Where a page of the image lies: a position in the manifest's packs and a page there, or one of the two
// marks.
class PageLocation {
 public:
  PageLocation() = default;
  PageLocation(uint32_t pack, uint32_t page) : bits_(uint64_t{pack} << 32 | page) {}
  static PageLocation Zero() { return PageLocation(~uint64_t{0}); }
  static PageLocation SameAs(uint32_t ordinal) { return PageLocation(kSameAs | ordinal); }

  bool zero() const { return bits_ == ~uint64_t{0}; }
  bool same_as() const { return !zero() && (bits_ & kSameAs) != 0; }
  uint32_t ordinal() const { return static_cast<uint32_t>(bits_); }  // of the page it equals
  uint32_t pack() const { return static_cast<uint32_t>(bits_ >> 32); }
  uint32_t page() const { return static_cast<uint32_t>(bits_); }

 private:
  explicit PageLocation(uint64_t bits) : bits_(bits) {}
  static constexpr uint64_t kSameAs = uint64_t{1} << 63;
  uint64_t bits_ = 0;
};

// Of the pages of an image, by their ordinals. May grow while other threads use those that are there.
class PageLocations {
 public:
  void GrowTo(uint64_t pages);
  uint64_t size() const { return size_; }
  PageLocation& operator[](uint32_t ordinal) { return blocks_[ordinal / kBlock][ordinal % kBlock]; }
  const PageLocation& operator[](uint32_t ordinal) const {
    return blocks_[ordinal / kBlock][ordinal % kBlock];
  }

 private:
  static constexpr uint32_t kBlock = 1u << 16;
  // For as many as an image can have: what moved could not be used meanwhile.
  std::vector<std::unique_ptr<PageLocation[]>> blocks_{(uint64_t{1} << 32) / kBlock};
  uint64_t size_ = 0;
};

std::vector<Extent> ExtentsOf(const std::vector<ContentRange>& ranges, const PageLocations& locations);

}  // namespace rekindle::store
