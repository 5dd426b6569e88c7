#include "restore/touched_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/opened_files.h"
#include "base/parallel.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "restore/touched_pages.h"

namespace rekindle::restore {
namespace {

using Json = nlohmann::json;

constexpr size_t kPrefetchThreads = 16;
// Two that are nearer to each other are read at once.
constexpr uint64_t kGap = uint64_t{16} << 10;

void AskFor(const TouchedFile& file) {
  UniqueFd fd = OpenRegularFile(file.path);
  if (!fd.valid()) return;
  for (const TouchedFile::Range& range : file.ranges) {
    ::posix_fadvise(fd.get(), static_cast<off_t>(range.offset), static_cast<off_t>(range.length),
                    POSIX_FADV_WILLNEED);
  }
}

}  // namespace

absl::StatusOr<std::vector<TouchedFile>> FindTouchedFiles(pid_t root) {
  std::map<std::string, std::map<uint64_t, uint64_t>> found;  // path, then end by offset
  const auto visit = [&found](pid_t pid) {
    const auto of_file = [](const TouchedArea& area) {
      return absl::StartsWith(area.path, "/") && !absl::EndsWith(area.path, kDeletedSuffix);
    };
    return VisitTouchedAreas(pid, of_file, [&found](const TouchedArea& area, const TouchedPages& touched) {
      auto& ranges = found[area.path];
      for (size_t i = 0; i < touched.ranges.size(); i += 2) {
        const uint64_t offset = touched.ranges[i] - area.start + area.offset;
        const uint64_t end = (touched.ranges[i + 1] & ~uint64_t{1}) - area.start + area.offset;
        uint64_t& known_end = ranges[offset];
        known_end = std::max(known_end, end);
      }
    });
  };
  for (pid_t pid : ProcessTree(root)) {
    if (pid != root) visit(pid).IgnoreError();
  }
  RK_RETURN_IF_ERROR(visit(root));
  std::vector<TouchedFile> files;
  for (const auto& [path, ranges] : found) {
    TouchedFile& file = files.emplace_back();
    file.path = path;
    for (const auto& [offset, end] : ranges) {
      if (!file.ranges.empty() && offset <= file.ranges.back().offset + file.ranges.back().length + kGap) {
        TouchedFile::Range& last = file.ranges.back();
        last.length = std::max(last.length, end - last.offset);
      } else {
        file.ranges.push_back({offset, end - offset});
      }
    }
  }
  return files;
}

FileIdentities::Checked CheckedOf(const std::vector<TouchedFile>& files) {
  FileIdentities::Checked checked;
  for (const TouchedFile& file : files) {
    if (file.checked) checked.emplace(file.path, *file.checked);
  }
  return checked;
}

std::string EncodeTouchedFiles(const std::vector<TouchedFile>& files) {
  Json list = Json::array();
  for (const TouchedFile& file : files) {
    Json ranges = Json::array();
    for (const TouchedFile::Range& range : file.ranges) ranges.push_back({range.offset, range.length});
    Json& entry = list.emplace_back(Json{{"path", file.path}, {"ranges", std::move(ranges)}});
    if (file.checked) {
      const FileIdentity& was = *file.checked;
      entry["checked"] = {was.device, was.inode, was.size, was.modified_ns, was.changed_ns};
    }
  }
  return Json{{"files", std::move(list)}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<std::vector<TouchedFile>> DecodeTouchedFiles(absl::string_view bytes) {
  std::vector<TouchedFile> files;
  try {
    const Json list = Json::parse(bytes.begin(), bytes.end());
    for (const Json& entry : list.at("files")) {
      TouchedFile& file = files.emplace_back();
      file.path = entry.at("path").get<std::string>();
      for (const Json& range : entry.at("ranges")) {
        file.ranges.push_back({range.at(0).get<uint64_t>(), range.at(1).get<uint64_t>()});
      }
      auto was = entry.find("checked");
      if (was == entry.end()) continue;
      file.checked = {was->at(0).get<uint64_t>(), was->at(1).get<uint64_t>(), was->at(2).get<uint64_t>(),
                      was->at(3).get<int64_t>(), was->at(4).get<int64_t>()};
    }
  } catch (const Json::exception& e) {
    return absl::DataLossError(absl::StrCat("the list of an image's touched files is damaged: ", e.what()));
  }
  return files;
}

absl::StatusOr<std::vector<TouchedFile>> ReadTouchedFiles(store::Store& store, const std::string& image) {
  RK_ASSIGN_OR_RETURN(std::string note, store.GetNote(image, store::kTouchedFilesNote));
  return DecodeTouchedFiles(note);
}

FilePrefetch::FilePrefetch(std::vector<TouchedFile> files) : files_(std::move(files)) {
  thread_ = std::thread([this] {
    ForEachInParallel(files_.size(), kPrefetchThreads, [this](size_t i) { AskFor(files_[i]); });
  });
}

FilePrefetch::~FilePrefetch() { thread_.join(); }

}  // namespace rekindle::restore
