#include "ckpt/read_files.h"

#include <sys/stat.h>

#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "base/clock.h"
#include "base/file_beginning.h"
#include "base/open_in_root.h"
#include "ckpt/criu_files.h"
#include "criu/image_files.h"

namespace rekindle::ckpt {
namespace {

// Each takes a descriptor for as long as the job is captured.
constexpr size_t kMostOpened = 64;
// What is read of each is at most 192 KiB.
constexpr size_t kMostSampled = 256;
constexpr size_t kMostFiles = 20'000;
// File systems stamp with a clock that ticks.
constexpr int64_t kTickNanos = 20'000'000;

bool MayGrow(const criu::RegularFile& file) {
  return file.has_size && file.readable && !file.written && !file.ghost && file.build_id.empty() &&
         !absl::StartsWith(file.path, "/proc/") && !absl::StartsWith(file.path, "/sys/") &&
         !absl::StartsWith(file.path, "/dev/");
}

}  // namespace

ReadFiles ReadFiles::Open(const std::map<std::string, std::string>& criu_files, ReadableFiles* readable) {
  ReadFiles result;
  const absl::string_view listed = ContentOf(criu_files, "files.img");
  if (listed.empty()) return result;
  const auto files = criu::ParseRegularFiles(listed, ContentOf(criu_files, "remap-fpath.img"));
  if (!files.ok()) return result;
  std::set<std::string> seen;
  size_t opened = 0;
  for (const criu::RegularFile& file : *files) {
    if (result.files_.size() == kMostFiles) break;
    if (!MayGrow(file) || !seen.insert(file.path).second) continue;
    if (opened == kMostOpened) {
      result.files_.push_back({file.path, file.size, UniqueFd()});
      continue;
    }
    struct stat info;
    const auto place = OpenInRoot("/", file.path);
    if (!place.ok() || ::fstat(place->get(), &info) != 0) continue;
    if (!readable->Has(info)) {
      result.files_.push_back({file.path, file.size, UniqueFd()});
      continue;
    }
    auto fd = OpenFileAt(place->get());
    if (!fd.ok()) continue;
    result.files_.push_back({file.path, file.size, *std::move(fd)});
    ++opened;
  }
  result.readable_ = *readable;
  result.looked_at_unix_ns_ = UnixNanos();
  return result;
}

bool ReadFiles::IsFromBeforeFreeze(const struct stat& info) const {
  return Nanos(info.st_mtim) + kTickNanos < looked_at_unix_ns_;
}

void ReadFiles::Fingerprint(const File& file, bool sampled, ReadableFiles* readable,
                            v1::NeededFile* known) const {
  struct stat info;
  UniqueFd later;
  if (!file.fd.valid()) {
    const auto place = OpenInRoot("/", file.path);
    if (!place.ok() || ::fstat(place->get(), &info) != 0 || !S_ISREG(info.st_mode)) return;
    if (static_cast<uint64_t>(info.st_size) != file.size || !IsFromBeforeFreeze(info)) return;
    // Who may not read it is to know nothing of what it holds.
    if (sampled && ((info.st_mode & S_IROTH) != 0 || readable->Has(info))) {
      if (auto opened = OpenFileAt(place->get()); opened.ok()) later = *std::move(opened);
    }
  }
  const int fd = file.fd.valid() ? file.fd.get() : later.get();
  if (fd >= 0) {
    const auto beginning = FileBeginning(fd, file.size), middle = FileMiddle(fd, file.size);
    if (::fstat(fd, &info) != 0) return;
    // One that has only grown since, as logs do, begins as it did; one that was written anew in place begins
    // with what the job has not read.
    const bool written_since = Nanos(info.st_mtim) > looked_at_unix_ns_;
    const bool has_grown = static_cast<uint64_t>(info.st_size) > file.size;
    if (beginning.ok() && (!written_since || has_grown)) known->set_beginning(*beginning);
    if (!IsFromBeforeFreeze(info)) return;
    if (middle.ok()) known->set_middle(*middle);
  }
  known->set_inode(info.st_ino);
  known->set_modified_ns(Nanos(info.st_mtim));
}

void ReadFiles::AddTo(v1::JobManifest* manifest) const {
  ReadableFiles readable = readable_;
  std::map<std::string, v1::NeededFile> known;
  size_t sampled = 0;
  for (const File& file : files_) {
    v1::NeededFile& one = known[file.path];
    Fingerprint(file, file.fd.valid() || sampled < kMostSampled, &readable, &one);
    if (one.beginning() != 0) ++sampled;
  }
  for (v1::NeededFile& file : *manifest->mutable_files()) {
    const auto it = known.find(file.path());
    if (it != known.end() && !file.written()) file.MergeFrom(it->second);
  }
}

}  // namespace rekindle::ckpt
