// A file that has another name by now: what is replaced as a whole is written under one name (`last.pt.tmp`)
// and then gets another (`last.pt`). Where the image has not its content, that is what it was then, and more.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "base/unique_fd.h"

namespace rekindle::restore {

struct RenamedFile {
  std::string name;  // in the folder
  UniqueFd file;     // for reading
  bool found() const { return file.valid(); }
};

// Among the regular files in `folder`. `is_it` is asked about each. With the rights of the thread.
RenamedFile FindRenamed(int folder,
                        const std::function<bool(const std::string& name, const struct stat& info)>& is_it);

// The first `bytes` of it into an empty file; the two share them where the file system can. DataLoss: it has
// become shorter.
absl::Status CopyBeginning(int from, int to, uint64_t bytes);

}  // namespace rekindle::restore
