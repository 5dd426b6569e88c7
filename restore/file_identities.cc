#include "restore/file_identities.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parallel.h"
#include "criu/build_id.h"

namespace rekindle::restore {
namespace {

constexpr size_t kLookThreads = 16;  // they wait for the disk, if for anything

enum class Verdict { kKnown, kLeftToCriu, kAnother };

// Of clocks that file systems stamp with, and more.
constexpr int64_t kJustChangedNs = int64_t{2} * 1000 * 1000 * 1000;

// CRIU keeps it in whole words.
bool IsRecorded(const std::string& id, const std::string& recorded) {
  return recorded.size() == (id.size() + 3) / 4 * 4 && recorded.compare(0, id.size(), id) == 0;
}

// `checked`: null where nothing is known of the path.
Verdict Look(const std::string& path, const std::string& recorded, const FileIdentity* checked,
             struct stat* info, bool* opened) {
  // Nothing but regular files is opened: CRIU says what is wrong with others.
  if (::stat(path.c_str(), info) != 0 || !S_ISREG(info->st_mode)) return Verdict::kLeftToCriu;
  if (checked != nullptr && FileIdentity::Of(*info) == *checked) return Verdict::kKnown;
  *opened = true;
  const UniqueFd file = OpenRegularFile(path);
  if (!file.valid() || ::fstat(file.get(), info) != 0) return Verdict::kLeftToCriu;
  // A few pages are wanted, and not what lies behind them.
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_RANDOM);
  absl::StatusOr<std::string> id = criu::ReadBuildId(file.get());
  if (!id.ok()) return Verdict::kLeftToCriu;
  return IsRecorded(*id, recorded) ? Verdict::kKnown : Verdict::kAnother;
}

}  // namespace

FileIdentity FileIdentity::Of(const struct stat& info) {
  return {info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size), Nanos(info.st_mtim),
          Nanos(info.st_ctim)};
}

absl::StatusOr<FileIdentities> FileIdentities::Check(const std::vector<criu::RegularFile>& files,
                                                     const Checked& checked) {
  std::map<std::string, std::string> recorded;
  for (const criu::RegularFile& file : files) {
    if (!file.build_id.empty() && !file.ghost) recorded.emplace(file.path, file.build_id);
  }
  const std::vector<std::pair<std::string, std::string>> paths(recorded.begin(), recorded.end());
  std::vector<Verdict> verdicts(paths.size());
  FileIdentities made;
  made.seen_.resize(paths.size());
  const int64_t long_ago = UnixNanos() - kJustChangedNs;
  std::atomic<size_t> files_opened{0};
  ForEachInParallel(paths.size(), kLookThreads, [&](size_t i) {
    Seen& seen = made.seen_[i];
    seen.path = paths[i].first;
    auto known = checked.find(seen.path);
    struct stat info {};
    bool opened = false;
    verdicts[i] =
        Look(seen.path, paths[i].second, known == checked.end() ? nullptr : &known->second, &info, &opened);
    seen.identity = FileIdentity::Of(info);
    seen.lasting = std::max(seen.identity.modified_ns, seen.identity.changed_ns) < long_ago;
    if (opened) ++files_opened;
  });
  made.opened_ = files_opened;
  std::vector<Seen> known;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (verdicts[i] == Verdict::kAnother) {
      return absl::FailedPreconditionError(
          absl::StrCat(paths[i].first, kAnotherBuild,
                       ": restoring would mix the two. Put the old one back (was its package upgraded?), or "
                       "take a new image"));
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
    return ::stat(seen.path.c_str(), &now) == 0 && FileIdentity::Of(now) == seen.identity;
  });
}

FileIdentities::Checked FileIdentities::Lasting() const {
  Checked lasting;
  for (const Seen& seen : seen_) {
    if (seen.lasting) lasting.emplace(seen.path, seen.identity);
  }
  return lasting;
}

}  // namespace rekindle::restore
