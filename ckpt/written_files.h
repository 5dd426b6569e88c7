// Regular files that a frozen job has open for writing, as they are while it stands still: what a restore
// needs to make them so again (restore/file_rollback.h).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/leases.h"
#include "ckpt/readable_files.h"
#include "ckpt/staged_image.h"
#include "ckpt/staging_arena.h"
#include "ckpt/tracked_files.h"
#include "dedup_store/store.h"
#include "rekindle/v1/job_manifest.pb.h"

namespace rekindle::ckpt {

// Contents are copied while the job stands still: hence the limits. Shared memory has none; like other memory
// it is needed.
struct WrittenFilesOptions {
  bool contents = false;  // take the content of files that are rewritten in place
  // Content that is taken unasked, so that files which are written under one name and then get another, as
  // checkpoints are, can be made again when their first name is gone: of small files, and of new ones.
  uint64_t small_bytes = 1 << 20;         // each
  uint64_t small_limit_bytes = 16 << 20;  // of all small ones together
  // And of SQLite's databases with a log or journal beside them, of which a part is of no use: together.
  uint64_t databases_limit_bytes = 64 << 20;
  absl::Duration new_until_age = absl::Seconds(60);  // where the file system tells it
  // Whose content is not taken: files, and folders with all below them; absolute.
  std::vector<std::string> ignore_paths;
  // Of all other contents together.
  uint64_t contents_limit_bytes = 1ull << 30;
  // Of a job that does not see our files, in a container or a sandbox: what leads to its root folder
  // ("/proc/PID/root"). Empty: names are as we have them.
  std::string sandbox_root;
  // Shared memory without a name (LostNames::nameless): what the images call it, and where it is to be read.
  std::map<std::string, std::string> nameless;
  // The job's. A file whose name others have taken since CRIU looked is found by their descriptors: it is in
  // the image as one of that name, as if that had gone a moment later.
  std::vector<pid_t> pids;
  std::map<std::string, std::string> just_gone;  // those, by name: where they are to be read
  // The image's owner gets to see the content: what of it he may see.
  ReadableFiles readable;
  // As they were shortly before; null: they are read when the first file is.
  std::shared_ptr<Leases> leases;
  // Files that it need not have open; not owned; null: none.
  TrackedFiles* tracked = nullptr;
  // What it had open when the image before this one was taken. nullopt: there is none, and what it has open
  // it has opened in `age`, the time that it has run.
  std::optional<std::vector<v1::WrittenFile>> before;
  absl::Duration age = absl::InfiniteDuration();
};

struct WrittenFiles {
  std::vector<v1::WrittenFile> files;                   // by path, each file once; `content_object` empty
  std::map<size_t, std::vector<CopiedRange>> contents;  // of files[N], by offset, without holes; in the arena
  std::vector<std::string> warnings;                    // content that was left out, small files' excepted
};

// Do all of these processes see the files that we see? Those of a container or a copy in a sandbox do not,
// and the names that they know say nothing here.
bool SeeOurFiles(const std::vector<pid_t>& pids);

// To be called while the job stands still, with CRIU's small image files, by name. Copies of contents go into
// `arena`; when that or a file fails, a warning says so and the content is left out. DataLoss: CRIU's images
// can't be read.
absl::StatusOr<WrittenFiles> LookAtWrittenFiles(const std::map<std::string, std::string>& criu_files,
                                                WrittenFilesOptions options, StagingArena* arena);

// Records the files in `manifest`, and gives their contents to `writer`: the arena must live until that has
// committed.
absl::Status AddToImage(const WrittenFiles& written, store::ImageWriter& writer, v1::JobManifest* manifest);

// Reads, while the job runs, what LookAtWrittenFiles reads of the ends of its files, so that it need not come
// from a disk or a server in the freeze.
void ReadEndingsAhead(const std::vector<pid_t>& pids, WrittenFilesOptions options);

// What LookAtWrittenFiles may have to copy, by a look at the processes while they run: at most the options'
// limits, and shared memory that they have open. (What is mapped alone counts as the processes' memory.)
uint64_t EstimateContents(const std::vector<pid_t>& pids, const WrittenFilesOptions& options);

}  // namespace rekindle::ckpt
