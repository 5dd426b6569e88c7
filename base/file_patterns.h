// Files by the paths and patterns that a user gives for them.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rekindle {

// A regular file that was found. `folder` and `name` are for as long as it is visited.
struct MatchingFile {
  const std::string& path;  // as the pattern begins
  int folder;               // open
  const std::string& name;  // in it
  const struct stat& info;
};

// Of those that were given by a user. InvalidArgument: they are too many, or one is not absolute, too long,
// or of what the kernel makes up (/proc, /sys, /dev).
absl::Status CheckFilePattern(absl::string_view pattern);
absl::Status CheckFilePatterns(size_t count);
template <typename Patterns>
absl::Status CheckFilePatterns(const Patterns& patterns) {
  absl::Status status = CheckFilePatterns(static_cast<size_t>(patterns.size()));
  for (const std::string& pattern : patterns) status.Update(CheckFilePattern(pattern));
  return status;
}

// Visits the regular files that match one of `patterns`, absolute ones, where `root` (a descriptor) is the
// root folder: the file of that path; all below the folder of that path; else those of a pattern as of a
// shell (fnmatch: * ? [] \), in which ** stands for any number of folders, and all below folders that match
// it. Names that begin with a dot match no wildcard. Symbolic links are followed on the way to the first
// wildcard, none below it or below a folder. A file that matches several times may be visited more than once.
// Files that a roll-back has kept (*.rekindle-*) are none.
//
// `visit` ends the search by returning false. Returns whether all was looked at: no more than
// `most_names` names are. What can't be read is passed over. Thread-safe; works with the rights of the
// thread.
bool VisitMatchingFiles(int root, const std::vector<std::string>& patterns, size_t most_names,
                        absl::FunctionRef<bool(const MatchingFile&)> visit);

}  // namespace rekindle
