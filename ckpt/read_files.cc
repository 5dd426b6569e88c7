#include "ckpt/read_files.h"

#include <sys/stat.h>

#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "base/file_beginning.h"
#include "base/open_in_root.h"
#include "ckpt/criu_files.h"
#include "criu/image_files.h"

namespace rekindle::ckpt {
namespace {

// Each takes a descriptor for as long as the job is captured.
constexpr size_t kMostFiles = 64;

bool MayGrow(const criu::RegularFile& file) {
  return file.has_size && file.readable && !file.written && !file.ghost && file.build_id.empty() &&
         !absl::StartsWith(file.path, "/proc/") && !absl::StartsWith(file.path, "/sys/") &&
         !absl::StartsWith(file.path, "/dev/");
}

}  // namespace

ReadFiles ReadFiles::Open(const std::map<std::string, std::string>& criu_files, ReadableFiles* readable) {
  ReadFiles result;
  const absl::string_view opened = ContentOf(criu_files, "files.img");
  if (opened.empty()) return result;
  const auto files = criu::ParseRegularFiles(opened, ContentOf(criu_files, "remap-fpath.img"));
  if (!files.ok()) return result;
  std::set<std::string> seen;
  for (const criu::RegularFile& file : *files) {
    if (result.files_.size() == kMostFiles) break;
    if (!MayGrow(file) || !seen.insert(file.path).second) continue;
    struct stat info;
    const auto place = OpenInRoot("/", file.path);
    if (!place.ok() || ::fstat(place->get(), &info) != 0 || !readable->Has(info)) continue;
    auto fd = OpenFileAt(place->get());
    if (fd.ok()) result.files_.push_back({file.path, file.size, *std::move(fd)});
  }
  return result;
}

void ReadFiles::AddTo(v1::JobManifest* manifest) const {
  std::map<std::string, uint64_t> beginnings;
  for (const File& file : files_) {
    const auto beginning = FileBeginning(file.fd.get(), file.size);
    if (beginning.ok()) beginnings[file.path] = *beginning;
  }
  for (v1::NeededFile& file : *manifest->mutable_files()) {
    const auto it = beginnings.find(file.path());
    if (it != beginnings.end() && !file.written()) file.set_beginning(it->second);
  }
}

}  // namespace rekindle::ckpt
