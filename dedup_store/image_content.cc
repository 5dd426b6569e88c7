#include "dedup_store/image_content.h"

#include "dedup_store/hashing.h"

namespace rekindle::store {

std::vector<Blob> ImageContent::LayOut() {
  std::vector<Blob> laid_out;
  Sha256 sha;
  auto pad = [this] { blob_stream.resize((blob_stream.size() + kPageSize - 1) / kPageSize * kPageSize); };
  size_t most_bytes = kPageSize;
  for (const NamedBlob& blob : blobs) most_bytes += (blob.bytes.size() / kPageSize + 1) * kPageSize;
  blob_stream.reserve(most_bytes);
  for (bool large : {false, true}) {
    for (NamedBlob& blob : blobs) {
      if ((blob.bytes.size() >= kPageSize) != large) continue;
      if (large) pad();
      laid_out.push_back({blob.name, blob_stream.size(), blob.bytes.size(),
                          sha.Truncated(blob.bytes.data(), blob.bytes.size())});
      blob_stream += blob.bytes;
      std::string().swap(blob.bytes);
    }
  }
  pad();
  blobs.clear();
  if (!blob_stream.empty()) {
    uint64_t pages = blob_stream.size() / kPageSize;
    blob_object.ranges = {{0, reinterpret_cast<const std::byte*>(blob_stream.data()), pages,
                           static_cast<uint32_t>(ordinals()), false}};
    total_pages += pages;
  }
  return laid_out;
}

void PageLocations::GrowTo(uint64_t pages) {
  for (uint64_t block = (size_ + kBlock - 1) / kBlock; block * kBlock < pages; ++block) {
    blocks_[block] = std::make_unique<PageLocation[]>(kBlock);
  }
  size_ = pages;
}

std::vector<Extent> ExtentsOf(const std::vector<ContentRange>& ranges, const PageLocations& locations) {
  std::vector<Extent> extents;
  for (const ContentRange& range : ranges) {
    if (range.zero) {
      AppendExtent(extents, {range.page, range.pages, Extent::kZero, 0});
      continue;
    }
    for (uint64_t i = 0; i < range.pages; ++i) {
      PageLocation location = locations[static_cast<uint32_t>(range.first_ordinal + i)];
      if (location.same_as()) location = locations[location.ordinal()];
      if (location.zero()) {
        AppendExtent(extents, {range.page + i, 1, Extent::kZero, 0});
      } else {
        AppendExtent(extents, {range.page + i, 1, location.pack(), location.page()});
      }
    }
  }
  return extents;
}

}  // namespace rekindle::store
