// A CRIU image directory in memory, on its way into the store.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "ckpt/address_range.h"
#include "dedup_store/image_in_memory.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::ckpt {

// Bytes of a file, in order, in one or more pieces; each piece but the last is whole pages.
using Pieces = std::vector<absl::Span<const std::byte>>;

struct StagedImage {
  std::map<std::string, std::string> files;  // all but the pages images, by name
  std::map<std::string, Pieces> pages;       // "pages-N.img"; not owned
  // Of the memory that belongs to such a file, ascending: what no piece holds, because it is as the parent of
  // the image to be has it. Its pagemap is ascending too.
  std::map<std::string, std::vector<AddressRange>> unchanged;

  uint64_t bytes() const;  // without what is unchanged
  uint64_t unchanged_bytes() const;
};

// Part of a task's memory, in whole pages; not owned.
struct CopiedRange {
  uint64_t address = 0;
  absl::Span<const std::byte> bytes;
  uint64_t unchanged_bytes = 0;  // in place of `bytes`: so many, which are as the parent image has them

  uint64_t size() const { return bytes.size() + unchanged_bytes; }
  CopiedRange First(uint64_t count) const;  // all of it, when it is shorter
  void RemoveFirst(uint64_t count);         // at most its size
};

// The name of the object that holds the memory of a task, as CRIU numbers it.
std::string TaskMemoryObject(pid_t task);

// Puts memory into the image that was copied past CRIU: by task, ascending. DataLoss when the image has no
// pagemap of such a task. What the dump has too is taken from there.
absl::Status AddCopiedMemory(const std::map<pid_t, std::vector<CopiedRange>>& copied, StagedImage* image);

// Gives all of it to `writer`: pages under their addresses (the pagemaps say which), everything else as
// blobs, and records in `manifest` where the pages went. The pieces must live until the writer has committed.
// DataLoss when a pages image and its pagemap do not fit each other. FailedPrecondition: the writer's parent
// has not all that is unchanged.
// `pages`, if given: what went where.
absl::Status AddToImage(const StagedImage& staged, store::ImageWriter& writer, v1::JobManifest* manifest,
                        store::ImageInMemory* pages = nullptr);

// Lists in `manifest` the regular files that a restore must find on disk: those the job has open or mapped
// and that still had their names. Nothing when the images do not tell.
void RecordNeededFiles(const StagedImage& staged, v1::JobManifest* manifest);

}  // namespace rekindle::ckpt
