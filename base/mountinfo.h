// The kernel's list of mounts, /proc/PID/mountinfo (proc(5)).
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rekindle {

struct MountLine {
  std::string device;                // "MAJOR:MINOR"
  std::string root;                  // what of the file system is mounted
  std::string point;                 // where
  std::string here;                  // options of this mount: "rw,relatime"
  std::vector<std::string> ties;     // to others: "shared:1", "master:2"; none: it is private
  std::string type;                  // of file system
  std::vector<std::string> options;  // of the file system, not those of the mount
  int id = 0, parent = 0;  // what it is mounted in; of a list of what lies below a folder: maybe not in it
};

// Of the file's contents, in its order; lines that make no sense are left out. Blanks in names stay as the
// kernel writes them (\040). Thread-safe.
std::vector<MountLine> ParseMountinfo(absl::string_view mountinfo);

}  // namespace rekindle
