// Regular files that a frozen job only reads: what tells a restore that they have only been appended to
// since, as logs and growing datasets are, and not edited.
#pragma once

#include <cstdint>
#include <map>
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

  // Puts the files' beginnings into `manifest`, which has the needed files. The job may run by then: what is
  // behind the size that a file had in the freeze is not looked at.
  void AddTo(v1::JobManifest* manifest) const;

 private:
  struct File {
    std::string path;
    uint64_t size = 0;
    UniqueFd fd;
  };
  std::vector<File> files_;
};

}  // namespace rekindle::ckpt
