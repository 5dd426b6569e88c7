// An image on its way out, whole or as what has changed since another: dedup_store/image_stream.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dedup_store/image_stream.h"
#include "dedup_store/store.h"

namespace rekindle::restore {

// One stream of several, of which each builds upon the one before.
struct SendPart {
  std::string origin;
  std::string base;   // origin of what it builds upon; empty: nothing
  bool last = false;  // it is the image itself; else a part of it: an image that has nothing but pages of it
};

struct SendOptions {
  // As Store::Find gives it. Its name and labels go along: others, of other owners too, may have its digest.
  store::ImageInfo image;
  std::optional<store::ImageInfo> base;  // pages that it has at the same address are left out; none: none are
  std::string made_by;                   // Rekindle's version
  // In bytes of memory; false ends the sending (Cancelled). Called on the calling thread.
  std::function<bool(uint64_t done, uint64_t total)> progress;
  // `*cancel` ends the comparing with the base soon (Cancelled), of which there is no progress to tell.
  const std::atomic<bool>* cancel = nullptr;
  // Set: the image is sent in parts. Called before each stream, once the one before is complete; a status
  // other than OK ends the sending.
  std::function<absl::Status(const SendPart& part)> begin_part;
  uint64_t part_bytes = 0;  // of memory that a part brings; 0: what goes in about half a minute
  // Origins of parts, of any image, that whoever takes this one has: what they bring is not sent again.
  std::vector<std::string> parts_there;
};

struct SentImage {
  uint64_t bytes = 0;  // of all streams
};

// Reads and compresses ahead of `sink`, with a few tens of MiB of memory. NotFound: no such image. DataLoss:
// it is damaged, or its base is; the stream is then not complete, which whoever reads it notices.
absl::StatusOr<SentImage> SendImage(const store::Store& store, const SendOptions& options,
                                    store::ImageStreamWriter::Sink sink);

}  // namespace rekindle::restore
