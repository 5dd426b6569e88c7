// Regular files that a frozen job only reads: what tells a restore that they are as they were, or have only
// been appended to since, as logs and growing datasets are, and not edited.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "ckpt/readable_files.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::ckpt {

class ReadFiles {
 public:
  // To be called while the job stands still, with CRIU's small image files, by name, of a job that sees our
  // files. What can't be opened is left out, and what `readable` does not have; some files at most. Programs
  // and libraries are left out: CRIU knows them by more than their size.
  static ReadFiles Open(const std::map<std::string, std::string>& criu_files, ReadableFiles* readable);

  // Puts what the files are known by into `manifest`, which has the needed files. The job may run by then:
  // what is behind the size that a file had in the freeze is not looked at, and what has grown since is known
  // by its beginning alone, of those that were opened in the freeze.
  void AddTo(v1::JobManifest* manifest) const;

 private:
  struct File {
    std::string path;
    uint64_t size = 0;
    UniqueFd fd;  // of those beyond the first ones none in the freeze, in which each costs time
  };
  // Only with the freeze's times can it be told what was changed after it.
  bool IsFromBeforeFreeze(const struct stat& info) const;
  void Fingerprint(const File& file, bool sampled, ReadableFiles* readable, v1::NeededFile* known) const;

  std::vector<File> files_;
  ReadableFiles readable_;
  int64_t looked_at_unix_ns_ = 0;
};

}  // namespace rekindle::ckpt
