// Which parts of which files a job has mapped and come to need: programs, libraries, data. After a restart of
// the machine, or when its memory was used for something else, they lie on the disk, and a copy would wait
// for one of them after the other. So they are recorded once, kept beside the image
// (store::kTouchedFilesNote), and asked for all at once before the first copy starts, as BootSeer does with
// the files of a training job's start (arXiv 2507.12619).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/store.h"
#include "restore/file_identities.h"

namespace rekindle::restore {

struct TouchedFile {
  struct Range {
    uint64_t offset = 0, length = 0;  // bytes
    friend bool operator==(const Range& a, const Range& b) = default;
  };
  std::string path;           // absolute
  std::vector<Range> ranges;  // ascending, disjoint; empty: it is mapped, and nothing of it was touched
  std::optional<FileIdentity> checked = {};  // when its build ID was found to be that of the image
  friend bool operator==(const TouchedFile& a, const TouchedFile& b) = default;
};

// Of a tree of processes as it is now. NotFound: its root has ended, before or meanwhile; others may.
absl::StatusOr<std::vector<TouchedFile>> FindTouchedFiles(pid_t root);

// Of those that were: see FileIdentities::Check.
FileIdentities::Checked CheckedOf(const std::vector<TouchedFile>& files);

std::string EncodeTouchedFiles(const std::vector<TouchedFile>& files);
// DataLoss: the bytes are no such list.
absl::StatusOr<std::vector<TouchedFile>> DecodeTouchedFiles(absl::string_view bytes);
// Those that were recorded of the image with this digest. NotFound: none were.
absl::StatusOr<std::vector<TouchedFile>> ReadTouchedFiles(store::Store& store, const std::string& image);

// Brings them into the page cache, in threads of its own. What can't be read is left out: it is only asked
// for ahead of time. The destructor waits until all was asked for.
class FilePrefetch {
 public:
  explicit FilePrefetch(std::vector<TouchedFile> files);
  ~FilePrefetch();
  FilePrefetch(const FilePrefetch&) = delete;
  FilePrefetch& operator=(const FilePrefetch&) = delete;

 private:
  const std::vector<TouchedFile> files_;
  std::thread thread_;
};

}  // namespace rekindle::restore
