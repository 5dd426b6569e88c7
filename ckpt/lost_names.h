// Files that a frozen job has open or mapped under a name that is gone, while they have others: what its
// images are to say of them (criu/lost_names.h tells why CRIU's own answer does not last).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/readable_files.h"
#include "criu/lost_names.h"

namespace rekindle::ckpt {

struct LostNames {
  std::map<std::string, criu::LinkReplacement> by_link;  // by the path of CRIU's extra name
  std::vector<std::string> on_disk;                      // paths of the extra names (extra_names.h)
  // Shared memory without any name: what the images call it, and where it can be read while the job stands
  // still: a descriptor of CRIU's, if nobody has put another link in its place. Its content is not taken
  // here.
  std::map<std::string, std::string> nameless;
  std::vector<std::string> warnings;

  LostNames WithoutContents() const;
};

// To be called while the job stands still, with CRIU's small image files by name. `run` is the name of CRIU's
// run (criu::DumpOptions). `root` leads to the job's root folder ("/proc/PID/root"). A file that has another
// name in the same folder gets that; of others the content is taken, of all together at most
// `content_limit_bytes`. Shared memory without a name gets one that begins with v1::kNamelessPrefix and
// `job`. ResourceExhausted: there is more. Aborted: another process makes such a file longer.
// PermissionDenied: content that `readable` does not have; whoever
// may write the folder may have put it there.
absl::StatusOr<LostNames> LookAtLostNames(const std::map<std::string, std::string>& criu_files,
                                          const std::string& run, const std::string& root,
                                          const std::string& job, uint64_t content_limit_bytes,
                                          ReadableFiles* readable);

// Makes the dump's images say so. Aborted: they have extra names that nobody has looked at.
absl::Status PutIntoImages(LostNames names, std::map<std::string, std::string>* criu_files);

// CRIU leaves its extra names where the job does not run on. While the job exists.
void RemoveExtraNames(const LostNames& names, const std::string& root);

// After a CRIU that was killed: removes the extra names of its run that are in the list in its work folder,
// under the root folder of `process`, one of the job's, or ours if that is gone.
void RemoveLeftExtraNames(const std::string& work_directory, const std::string& run, pid_t process);

}  // namespace rekindle::ckpt
