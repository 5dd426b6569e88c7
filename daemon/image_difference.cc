#include "daemon/image_difference.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "criu/image_files.h"
#include "proto/rekindle/v1/image_layout.h"
#include "restore/restore.h"

namespace rekindle::daemon {
namespace {

// CRIU's bits of a memory area's status.
constexpr uint32_t kAreaStack = 1u << 1, kAreaHeap = 1u << 5, kAreaFilePrivate = 1u << 6,
                   kAreaFileShared = 1u << 7, kAreaAnonymousShared = 1u << 8;

constexpr absl::string_view kFilesImage = "files.img";
constexpr absl::string_view kUnmapped = "(not mapped)";

// The half-open range of addresses an area takes, and what it is.
struct NamedArea {
  uint64_t start = 0, end = 0;
  std::string name;
};

struct Sums {
  uint64_t bytes_a = 0, bytes_b = 0, changed = 0;
};

// Spreads runs of pages over the areas they lie in; both are in ascending order.
template <typename Add>
void SpreadOverAreas(const std::vector<store::PageRun>& runs, const std::vector<NamedArea>& areas,
                     const Add& add) {
  size_t area = 0;
  for (const store::PageRun& run : runs) {
    uint64_t at = run.address;
    const uint64_t end = run.address + run.pages * store::kPageSize;
    while (at < end) {
      while (area < areas.size() && areas[area].end <= at) ++area;
      uint64_t piece_end = end;
      absl::string_view name = kUnmapped;
      if (area < areas.size()) {
        if (areas[area].start <= at) {
          piece_end = std::min(end, areas[area].end);
          name = areas[area].name;
        } else {
          piece_end = std::min(end, areas[area].start);
        }
      }
      add(name, piece_end - at);
      at = piece_end;
    }
  }
}

// Paths of files.img, by the ids that areas have.
using FileNames = absl::flat_hash_map<uint64_t, std::string>;

// "[heap]", "[stack]", the path of the mapped file, "shared memory", or "anonymous".
std::string AreaName(const criu::Vma& area, const FileNames& files) {
  if (area.status & (kAreaFilePrivate | kAreaFileShared)) {
    auto file = files.find(area.shmid);
    return file == files.end() ? "mapped file" : file->second;
  }
  if (area.status & kAreaHeap) return "[heap]";
  if ((area.status & kAreaStack) || (area.flags & MAP_GROWSDOWN)) return "[stack]";
  if (area.status & kAreaAnonymousShared) return "shared memory";
  return "anonymous";
}

// The areas of an image's processes. The files, which are those of all of them, are read once.
class AreasOfImage {
 public:
  explicit AreasOfImage(const store::ImageReader& image) : image_(image) {}

  absl::StatusOr<std::vector<NamedArea>> Of(const std::string& pid) {
    std::string mm_name = absl::StrCat(v1::kCriuFilePrefix, "mm-", pid, ".img");
    RK_ASSIGN_OR_RETURN(std::string mm, image_.ReadBlob(mm_name));
    RK_ASSIGN_OR_RETURN(std::vector<criu::Vma> areas, criu::ParseMm(mm));
    if (!files_) {
      RK_ASSIGN_OR_RETURN(files_, ReadFileNames());
    }
    std::vector<NamedArea> named;
    named.reserve(areas.size());
    for (const criu::Vma& area : areas) named.push_back({area.start, area.end, AreaName(area, *files_)});
    std::sort(named.begin(), named.end(),
              [](const NamedArea& x, const NamedArea& y) { return x.start < y.start; });
    return named;
  }

 private:
  absl::StatusOr<FileNames> ReadFileNames() const {
    RK_ASSIGN_OR_RETURN(std::string content, image_.ReadBlob(absl::StrCat(v1::kCriuFilePrefix, kFilesImage)));
    RK_ASSIGN_OR_RETURN(std::vector<criu::RegularFile> files, criu::ParseRegularFiles(content));
    FileNames names;
    for (criu::RegularFile& file : files) names.try_emplace(file.id, std::move(file.path));
    return names;
  }

  const store::ImageReader& image_;
  std::optional<FileNames> files_;
};

std::map<std::string, std::string> ReadCommands(const store::ImageReader& image) {
  std::map<std::string, std::string> commands;  // by PID
  absl::StatusOr<v1::JobManifest> manifest = restore::ReadJobManifest(image);
  if (!manifest.ok()) return commands;
  for (const v1::JobProcess& process : manifest->processes()) {
    std::string program = process.command().substr(0, process.command().find(' '));
    program = program.substr(program.rfind('/') + 1);
    if (!program.empty()) commands[absl::StrCat(process.pid())] = std::move(program);
  }
  return commands;
}

v1::AreaDifference Row(std::string process, std::string area, const Sums& sums) {
  v1::AreaDifference row;
  row.set_process(std::move(process));
  row.set_area(std::move(area));
  row.set_bytes_a(sums.bytes_a);
  row.set_bytes_b(sums.bytes_b);
  // `changed` pages are of B; what B has besides them is as in A.
  row.set_equal_bytes(sums.bytes_b > sums.changed ? sums.bytes_b - sums.changed : 0);
  return row;
}

}  // namespace

absl::StatusOr<std::vector<v1::AreaDifference>> CompareImages(const store::Store& store, absl::string_view a,
                                                              absl::string_view b,
                                                              const std::atomic<bool>* cancel) {
  RK_ASSIGN_OR_RETURN(std::unique_ptr<store::ImageReader> image_a, store.OpenImage(a));
  RK_ASSIGN_OR_RETURN(std::unique_ptr<store::ImageReader> image_b, store.OpenImage(b));
  RK_ASSIGN_OR_RETURN(std::vector<store::ObjectDifference> objects, store.Diff(a, b, cancel));
  std::map<std::string, std::string> commands = ReadCommands(*image_b);
  commands.merge(ReadCommands(*image_a));
  AreasOfImage areas_a(*image_a), areas_b(*image_b);

  std::vector<v1::AreaDifference> rows;
  Sums metadata;
  for (const store::ObjectDifference& object : objects) {
    absl::string_view pid = object.name;
    if (!absl::ConsumePrefix(&pid, v1::kTaskMemoryPrefix)) {
      Sums sums{object.bytes_a, object.bytes_b,
                object.bytes_b - std::min(object.bytes_b, object.equal_bytes)};
      if (absl::StartsWith(object.name, v1::kSharedMemoryPrefix)) {
        rows.push_back(Row("", absl::StrCat("shared memory ", object.name.substr(4)), sums));
      } else if (absl::StartsWith(object.name, v1::kRawPagesPrefix) ||
                 absl::StartsWith(object.name, v1::kFileContentPrefix)) {
        rows.push_back(Row("", object.name, sums));
      } else {
        metadata.bytes_a += sums.bytes_a;
        metadata.bytes_b += sums.bytes_b;
        metadata.changed += sums.changed;
      }
      continue;
    }
    std::string number(pid);
    std::map<std::string, Sums, std::less<>> by_area;
    auto collect = [&](const store::ImageReader& image, AreasOfImage& areas_of, bool is_b) -> absl::Status {
      if ((is_b ? object.bytes_b : object.bytes_a) == 0) return absl::OkStatus();
      RK_ASSIGN_OR_RETURN(std::vector<NamedArea> areas, areas_of.Of(number));
      RK_ASSIGN_OR_RETURN(std::vector<store::PageRun> runs, image.Runs(object.name));
      SpreadOverAreas(runs, areas, [&](absl::string_view name, uint64_t bytes) {
        Sums& sums = by_area[std::string(name)];
        (is_b ? sums.bytes_b : sums.bytes_a) += bytes;
      });
      if (is_b) {
        SpreadOverAreas(object.changed, areas, [&](absl::string_view name, uint64_t bytes) {
          by_area[std::string(name)].changed += bytes;
        });
      }
      return absl::OkStatus();
    };
    RK_RETURN_IF_ERROR(collect(*image_a, areas_a, false));
    RK_RETURN_IF_ERROR(collect(*image_b, areas_b, true));
    std::string process = commands.count(number) ? absl::StrCat(number, " ", commands[number]) : number;
    for (const auto& [area, sums] : by_area) rows.push_back(Row(process, area, sums));
  }
  if (metadata.bytes_a + metadata.bytes_b > 0) rows.push_back(Row("", "metadata", metadata));
  auto difference = [](const v1::AreaDifference& row) {
    return row.bytes_a() + row.bytes_b() -
           2 * std::min(row.equal_bytes(), std::min(row.bytes_a(), row.bytes_b()));
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const v1::AreaDifference& x, const v1::AreaDifference& y) {
    return difference(x) > difference(y);
  });
  return rows;
}

}  // namespace rekindle::daemon
