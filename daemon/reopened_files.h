// Files that a job appends to by opening and closing them each time. None is open when an image is taken, so
// that a roll-back leaves them; what was appended after the image is there twice once the job has done the
// same again. They are found when it has gone back: by what it had written since, and by what is appended to
// it once more. A file that is written anew each time is none of them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/file_rights.h"
#include "base/opened_files.h"
#include "rekindle/v1/job_manifest.pb.h"
#include "rekindle/v1/supervision.pb.h"

namespace rekindle::daemon {

// Of one job. Thread-safe. Everything is done with the rights of the job's user, on a thread of its own that
// nobody waits for: a file system may not answer (NFS whose server has gone).
class ReopenedFiles {
 public:
  struct Options {
    Owner user;                        // whose files count
    std::vector<std::string> folders;  // in which, and some levels below, they are looked for; absolute
    std::vector<std::string> ignored;  // files, and folders with all below them
    std::vector<std::string> tracked;  // patterns (base/file_patterns.h): those are seen to
    std::set<std::string> in_image;    // what the roll-back sees to, by path
    std::set<std::pair<uint64_t, int64_t>> inodes_in_image;  // and by inode and birth
    std::set<int64_t> pids;     // of the job, as it knows them: TensorBoard's files name whose they are
    int64_t image_unix_ns = 0;  // written after that moment,
    int64_t ended_unix_ns = INT64_MAX;  // and, by the job, not after this one
  };

  // To be called while the job does not run, before it goes on from the image. What was found before counts
  // no more.
  void LookFor(Options options);
  // What there is of them, by path, once it was looked for, or after `patience` at the latest; may be others
  // that it writes anew.
  std::vector<std::string> Candidates(absl::Duration patience);
  // By path. True: it was made after the image, which therefore knows nothing of it though it be kept open.
  using Appended = std::map<std::string, bool>;
  // Begins a look at whether they were appended to again, unless the last one is under way, and returns what
  // those before have found: each file once. A text's is found by a line that it has twice now, and
  // had once before: others of the same user may write there as well, and what they append is new. Lines
  // that have the time in them are never found.
  Appended AppendedAgain();

 private:
  struct State;
  std::shared_ptr<State> Current() const ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  std::shared_ptr<State> state_ ABSL_GUARDED_BY(mutex_);
};

// Where a job writes, and what of it the image takes care of: the folder that it runs in, and those of the
// files that it has open. No folders: it has file systems of its own.
ReopenedFiles::Options PlacesOf(const v1::JobManifest& manifest, const v1::Rollback& rollback);

enum class NamesOfFiles {
  kTrusted,  // no file system is asked
  kChecked,  // in a container it may be another file of that name
};
// Those of these files that a process which is none of the job's has open for writing: they are that one's.
std::map<std::string, pid_t> WrittenByOthers(const std::set<std::string>& paths,
                                             const std::vector<pid_t>& job, NamesOfFiles names);

}  // namespace rekindle::daemon
