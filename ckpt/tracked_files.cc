#include "ckpt/tracked_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/database_files.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/file_beginning.h"
#include "base/file_patterns.h"
#include "base/opened_files.h"
#include "base/parallel.h"
#include "base/permission_bits.h"
#include "base/timed_await.h"
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

std::vector<std::string> NoneIsRecorded(absl::string_view why) {
  return {absl::StrCat("no file of --track-path is recorded: ", why)};
}

// Looks whose threads have not ended. Each may hang for as long as a file server is away, and so may those of
// a job's next images: one user's must leave room for others'. Thread-safe.
class LooksUnderWay {
 public:
  bool Begin(uid_t user) {
    absl::MutexLock lock(&mutex_);
    int& of_user = of_user_[user];
    if (of_user >= kMostOfOne || all_ >= kMost) return false;
    ++of_user;
    ++all_;
    return true;
  }
  void End(uid_t user) {
    absl::MutexLock lock(&mutex_);
    --all_;
    if (--of_user_[user] == 0) of_user_.erase(user);
  }

 private:
  static constexpr int kMostOfOne = 32, kMost = 256;

  absl::Mutex mutex_;
  std::map<uid_t, int> of_user_ ABSL_GUARDED_BY(mutex_);
  int all_ ABSL_GUARDED_BY(mutex_) = 0;
};

LooksUnderWay& AllLooks() {
  static auto* const looks = new LooksUnderWay;
  return *looks;
}

}  // namespace

// What the thread works on, and keeps for as long as it does.
class TrackedFiles::Search {
 public:
  Search(std::vector<std::string> patterns, rekindle::Owner user, bool in_own_mounts)
      : patterns_(std::move(patterns)), user_(std::move(user)), in_own_mounts_(in_own_mounts) {}

  uid_t uid() const { return user_.uid; }
  // One after the other.
  Found Run(int root, Leases& leases) {
    Found found;
    const absl::Status status = WithFileRightsOf(user_, [&] {
      Find(root, leases, &found);
      return absl::OkStatus();
    });
    if (!status.ok()) found.warnings = NoneIsRecorded(status.message());
    return found;
  }

 private:
  struct Known {
    uint64_t size = 0;
    int64_t modified_ns = 0;
    uint64_t ending = 0;
  };
  void Find(int root, Leases& leases, Found* found);

  const std::vector<std::string> patterns_;
  const rekindle::Owner user_;
  const bool in_own_mounts_;
  std::map<InodeIdentity, Known> known_;
};

void TrackedFiles::Search::Find(int root, Leases& leases, Found* found) {
  std::vector<v1::WrittenFile>& files = found->files;
  std::set<InodeIdentity> seen;
  size_t of_others = 0;
  bool too_many = false;
  const bool all = VisitMatchingFiles(root, patterns_, kMostTrackedNames, [&](const MatchingFile& file) {
    InodeIdentity identity;
    identity.device = file.info.st_dev;
    identity.inode = file.info.st_ino;
    identity.born_ns = BornUnixNanos(file.folder, file.name, AT_SYMLINK_NOFOLLOW);
    if (!seen.insert(identity).second) return true;
    if (user_.uid != 0 && file.info.st_uid != user_.uid) {
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
      known = {record.size(), record.modified_ns(),
               leases.Has(record.device(), record.inode()) ? 0 : EndingOf(file)};
    }
    record.set_ending(known.ending);
    return true;
  });
  if (!all) {
    found->warnings.push_back(absl::StrCat(
        too_many
            ? absl::StrCat("more than ", kMostTrackedFiles, " files match --track-path")
            : absl::StrCat("more than ", kMostTrackedNames, " names had to be looked at for --track-path"),
        ": the others are not recorded, and not rolled back; name fewer"));
  }
  if (of_others > 0) {
    found->warnings.push_back(
        absl::StrCat(of_others, of_others == 1 ? " file that matches" : " files that match", " --track-path ",
                     of_others == 1 ? "is" : "are", " not the job's user's, and not recorded"));
  }
}

struct TrackedFiles::Work {
  absl::Mutex mutex;
  std::optional<Found> found ABSL_GUARDED_BY(mutex);
  bool done() const ABSL_SHARED_LOCKS_REQUIRED(mutex) { return found.has_value(); }
};

TrackedFiles::TrackedFiles(std::vector<std::string> patterns, std::string root, rekindle::Owner user,
                           bool in_own_mounts, Limits limits)
    : root_(std::move(root)),
      limits_(limits),
      search_(patterns.empty()
                  ? nullptr
                  : std::make_shared<Search>(std::move(patterns), std::move(user), in_own_mounts)) {}

void TrackedFiles::LookAhead() {
  if (search_) Find(Leases::BeginReading(), limits_.ahead);
}

std::vector<v1::WrittenFile> TrackedFiles::Look(std::shared_ptr<Leases> leases,
                                                std::vector<std::string>* warnings) {
  if (!search_) return {};
  std::optional<Found> found = Find(std::move(leases), limits_.frozen);
  if (!found) {
    found.emplace();
    found->warnings = NoneIsRecorded(
        "to look for them took too long; name fewer, and none on a file system that does not answer");
  }
  warnings->insert(warnings->end(), found->warnings.begin(), found->warnings.end());
  return std::move(found->files);
}

std::optional<TrackedFiles::Found> TrackedFiles::Find(std::shared_ptr<Leases> leases,
                                                      absl::Duration patience) {
  if (last_ != nullptr) {
    absl::MutexLock lock(&last_->mutex);
    if (!last_->done()) return std::nullopt;
  }
  // It leads through /proc, which shows nothing to a thread with the user's rights.
  absl::StatusOr<UniqueFd> root = OpenFile(root_, O_PATH | O_DIRECTORY);
  if (!root.ok()) return Found{{}, NoneIsRecorded(root.status().message())};
  if (!AllLooks().Begin(search_->uid())) {
    return Found{
        {},
        NoneIsRecorded(
            "as many looks for such files, of images before this one, as there may be still wait for a "
            "file system that does not answer; see to that, or don't name it")};
  }
  const auto work = std::make_shared<Work>();
  const absl::Status begun = CatchNoMoreThreads([&] {
    std::thread([work, search = search_, leases = std::move(leases),
                 place = std::make_shared<UniqueFd>(*std::move(root))] {
      Found found = search->Run(place->get(), *leases);
      AllLooks().End(search->uid());
      absl::MutexLock lock(&work->mutex);
      work->found = std::move(found);
    }).detach();
    return absl::OkStatus();
  });
  if (!begun.ok()) {
    AllLooks().End(search_->uid());
    return Found{{}, NoneIsRecorded(begun.message())};
  }
  last_ = work;
  absl::MutexLock lock(&work->mutex);
  AwaitUntil(work->mutex, absl::Condition(work.get(), &Work::done), Deadline(patience));
  return std::move(work->found);
}

}  // namespace rekindle::ckpt
