#include "ckpt/tracked_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/database_files.h"
#include "base/file.h"
#include "base/file_beginning.h"
#include "base/file_patterns.h"
#include "base/permission_bits.h"
#include "base/unique_fd.h"

namespace rekindle::ckpt {
namespace {

// 0: not known.
uint64_t EndingOf(const MatchingFile& file) {
  if (file.info.st_size == 0) return 0;
  const UniqueFd fd(
      ::openat(file.folder, file.name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat info;
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0 || info.st_dev != file.info.st_dev ||
      info.st_ino != file.info.st_ino)
    return 0;
  return FileEnding(fd.get(), static_cast<uint64_t>(file.info.st_size)).value_or(0);
}

}  // namespace

void TrackedFiles::LookAhead() {
  if (patterns_.empty()) return;
  const std::shared_ptr<Leases> leases = Leases::BeginReading();
  std::vector<std::string> warnings;
  Find(*leases, &warnings);
}

std::vector<v1::WrittenFile> TrackedFiles::Look(Leases& leases, std::vector<std::string>* warnings) {
  return patterns_.empty() ? std::vector<v1::WrittenFile>() : Find(leases, warnings);
}

std::vector<v1::WrittenFile> TrackedFiles::Find(Leases& leases, std::vector<std::string>* warnings) {
  std::vector<v1::WrittenFile> files;
  const absl::StatusOr<UniqueFd> root = OpenFile(root_, O_PATH | O_DIRECTORY);
  if (!root.ok()) {
    warnings->push_back(absl::StrCat("no file of --track-path is recorded: ", root.status().message()));
    return files;
  }
  std::set<InodeIdentity> seen;
  size_t of_others = 0;
  bool too_many = false;
  const bool all =
      VisitMatchingFiles(root->get(), patterns_, kMostTrackedNames, [&](const MatchingFile& file) {
        InodeIdentity identity;
        identity.device = file.info.st_dev;
        identity.inode = file.info.st_ino;
        identity.born_ns = BornUnixNanos(file.folder, file.name, AT_SYMLINK_NOFOLLOW);
        if (!seen.insert(identity).second) return true;
        if (user_ != 0 && file.info.st_uid != user_) {
          ++of_others;
          return true;
        }
        // Of a database a part is of no use (docs/files.md).
        if (!DatabaseBeside(file.path).empty()) return true;
        if (files.size() == kMostTrackedFiles) {
          too_many = true;
          return false;
        }
        v1::WrittenFile& record = files.emplace_back();
        record.set_tracked(true);
        record.set_path(file.path);
        record.set_size(static_cast<uint64_t>(file.info.st_size));
        record.set_device(file.info.st_dev);
        record.set_inode(file.info.st_ino);
        record.set_born_ns(identity.born_ns);
        record.set_modified_ns(Nanos(file.info.st_mtim));
        record.set_mode(file.info.st_mode & kPermissionBits);
        record.set_uid(file.info.st_uid);
        record.set_gid(file.info.st_gid);
        record.set_in_own_mounts(in_own_mounts_);
        Known& known = known_[identity];
        if (known.size != record.size() || known.modified_ns != record.modified_ns() || known.ending == 0) {
          known = {record.size(), record.modified_ns(), leases.Has(record.inode()) ? 0 : EndingOf(file)};
        }
        record.set_ending(known.ending);
        return true;
      });
  if (!all) {
    warnings->push_back(absl::StrCat(
        too_many
            ? absl::StrCat("more than ", kMostTrackedFiles, " files match --track-path")
            : absl::StrCat("more than ", kMostTrackedNames, " names had to be looked at for --track-path"),
        ": the others are not recorded, and not rolled back; name fewer"));
  }
  if (of_others > 0) {
    warnings->push_back(absl::StrCat(of_others, of_others == 1 ? " file that matches" : " files that match",
                                     " --track-path ", of_others == 1 ? "is" : "are",
                                     " not the job's user's, and not recorded"));
  }
  return files;
}

}  // namespace rekindle::ckpt
