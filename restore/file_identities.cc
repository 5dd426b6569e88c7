#include "restore/file_identities.h"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/parallel.h"
#include "criu/build_id.h"

namespace rekindle::restore {
namespace {

constexpr size_t kThreads = 16;  // they wait for the disk, if for anything

enum class Verdict { kKnown, kLeftToCriu, kAnother };

bool Same(const struct stat& a, const struct stat& b) {
  auto of = [](const struct stat& s) {
    return std::tuple(s.st_dev, s.st_ino, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec, s.st_ctim.tv_sec,
                      s.st_ctim.tv_nsec);
  };
  return of(a) == of(b);
}

// CRIU keeps it in whole words.
bool IsRecorded(const std::string& id, const std::string& recorded) {
  return recorded.size() == (id.size() + 3) / 4 * 4 && recorded.compare(0, id.size(), id) == 0;
}

Verdict Look(const std::string& path, const std::string& recorded, struct stat* info) {
  // Nothing but regular files is opened: CRIU says what is wrong with others.
  if (::stat(path.c_str(), info) != 0 || !S_ISREG(info->st_mode)) return Verdict::kLeftToCriu;
  absl::StatusOr<UniqueFd> file = OpenFile(path, O_RDONLY);
  if (!file.ok() || ::fstat(file->get(), info) != 0) return Verdict::kLeftToCriu;
  // A few pages are wanted, and not what lies behind them.
  ::posix_fadvise(file->get(), 0, 0, POSIX_FADV_RANDOM);
  absl::StatusOr<std::string> id = criu::ReadBuildId(file->get());
  if (!id.ok()) return Verdict::kLeftToCriu;
  return IsRecorded(*id, recorded) ? Verdict::kKnown : Verdict::kAnother;
}

}  // namespace

absl::StatusOr<FileIdentities> FileIdentities::Check(const std::vector<criu::RegularFile>& files) {
  std::map<std::string, std::string> recorded;
  for (const criu::RegularFile& file : files) {
    if (!file.build_id.empty() && !file.ghost) recorded.emplace(file.path, file.build_id);
  }
  const std::vector<std::pair<std::string, std::string>> paths(recorded.begin(), recorded.end());
  std::vector<Verdict> verdicts(paths.size());
  FileIdentities made;
  made.seen_.resize(paths.size());
  ForEachInParallel(paths.size(), kThreads, [&](size_t i) {
    made.seen_[i].path = paths[i].first;
    verdicts[i] = Look(paths[i].first, paths[i].second, &made.seen_[i].info);
  });
  std::vector<Seen> known;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (verdicts[i] == Verdict::kAnother) {
      return absl::FailedPreconditionError(
          absl::StrCat(paths[i].first,
                       " is another build than the one that the job has mapped: restoring would mix the two. "
                       "Put the old one "
                       "back (was its package upgraded?), or take a new image"));
    }
    if (verdicts[i] != Verdict::kKnown) continue;
    made.known_.insert(paths[i].first);
    known.push_back(std::move(made.seen_[i]));
  }
  made.seen_ = std::move(known);
  return made;
}

bool FileIdentities::Unchanged() const {
  return std::all_of(seen_.begin(), seen_.end(), [](const Seen& seen) {
    struct stat now;
    return ::stat(seen.path.c_str(), &now) == 0 && Same(now, seen.info);
  });
}

}  // namespace rekindle::restore
