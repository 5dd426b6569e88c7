// Copies folders with a function's code and layers, and takes a digest of what was copied.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace rekindle::functions {

struct CodeCopyOptions {
  uint64_t most_bytes = uint64_t{10} << 30;  // of all folders together
  uint64_t most_entries = 1'000'000;
  uint64_t bytes_before = 0, entries_before = 0;  // that count for these limits besides
  // Folders __pycache__ do not count for the digest: Python makes them, wherever it runs.
  bool without_compiled = false;
  std::function<void(uint64_t bytes)> progress;  // all that was copied so far; called now and then
  // Asked with it; an error ends the copy.
  std::function<absl::Status(uint64_t bytes)> may_take;
  const std::atomic<bool>* cancelled = nullptr;
};

// Everything is done with the calling thread's rights. Owned by one thread at a time.
//
// Regular files, folders and symbolic links are copied, with their permissions (no set-user-ID, set-group-ID
// and sticky bits) and times of modification; contents are shared with the source where the file system can
// do that. Links that lead to something in the same folder stay links; for others what they lead to is
// copied, as `zip -r` does; those that lead nowhere stay. Devices, FIFOs, sockets and what lies in /proc are
// refused.
class CodeCopier {
 public:
  static constexpr int kMostLevels = 64;

  explicit CodeCopier(CodeCopyOptions options);
  ~CodeCopier();

  // Copies what is in `source` (absolute) into `destination`, an empty folder. Errors name the file, under
  // `source`. OutOfRange: more than the limits; Cancelled; ResourceExhausted: the disk is full.
  absl::Status Copy(const std::string& source, int destination);

  // Only takes the digest, of what Copy would have copied.
  absl::Status Survey(const std::string& source);

  uint64_t bytes() const { return bytes_; }
  uint64_t entries() const { return entries_; }
  // Of all that was copied: kinds, permissions, names and contents, whatever the order of names on disk, and
  // the order of Copy calls. Of permissions those that are left when it is sealed. 64 hexadecimal digits.
  // Call it once, last.
  std::string Digest();
  // Has `text` count for the digest, such as that of what was copied elsewhere.
  void AddToDigest(absl::string_view text);

 private:
  class Hasher;
  // A folder being copied.
  struct Level {
    int source;
    int destination;   // -1: nothing is copied
    std::string path;  // of the source, for errors
    std::string name;  // relative to the folder given to Copy; empty: that folder
    int root_depth;    // where the folder that links may not lead out of lies
    int depth;
  };
  absl::Status CopyFolder(const Level& level);
  absl::Status CopyEntry(const Level& level, const std::string& name);
  absl::Status CopyLink(const Level& level, const std::string& name);
  absl::Status Descend(const Level& level, const std::string& name, UniqueFd source, bool through_link);
  absl::Status CopyFile(const Level& level, const std::string& name, UniqueFd source);
  absl::Status CopyContent(int source, int destination, const std::string& path);
  absl::Status HashContent(int file, uint64_t size, const std::string& path);
  absl::Status Count(uint64_t bytes, const std::string& path);

  const CodeCopyOptions options_;
  std::unique_ptr<Hasher> hasher_;
  std::string folder_;  // given to Copy
  std::vector<char> buffer_;
  uint64_t bytes_ = 0, entries_ = 0;
};

}  // namespace rekindle::functions
