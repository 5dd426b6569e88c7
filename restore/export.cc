#include <atomic>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "restore/image_directory.h"
#include "restore/pages_file.h"
#include "restore/restore.h"

namespace rekindle::restore {
namespace {

absl::StatusOr<ExportResult> WriteAll(const store::ImageReader& image, const std::string& directory,
                                      RestoreObserver* observer) {
  Stopwatch watch;
  RK_ASSIGN_OR_RETURN(v1::JobManifest manifest, ReadJobManifest(image));
  RK_ASSIGN_OR_RETURN(BlobCount blobs, WriteCriuFiles(image, directory, true));
  ExportResult result{blobs.files, blobs.bytes};
  uint64_t total = image.info().stats.logical_bytes;
  std::atomic<uint64_t> done{blobs.bytes};
  for (const v1::PagesObject& object : manifest.pages()) {
    RK_ASSIGN_OR_RETURN(criu::Pagemap pagemap, ReadPagemap(image, object));
    std::string path = absl::StrCat(directory, "/pages-", object.pages_id(), ".img");
    RK_RETURN_IF_ERROR(WritePagesFile(image, object, pagemap, path, &done));
    ++result.files;
    result.bytes += pagemap.present_pages() * store::kPageSize;
    if (observer) observer->OnProgress({"export", result.bytes, total, watch.seconds()});
  }
  return result;
}

}  // namespace

absl::StatusOr<ExportResult> ExportCriuDirectory(const store::Store& store, const std::string& image,
                                                 const std::string& directory, RestoreObserver* observer) {
  RK_ASSIGN_OR_RETURN(auto reader, store.OpenImage(image));
  bool existed = PathExists(directory);
  RK_RETURN_IF_ERROR(MakeDirectories(directory));
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(directory));
  if (!names.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("exporting ", image, " to ", directory, ": the folder is not empty; give a new one"));
  }
  auto result = WriteAll(*reader, directory, observer);
  if (result.ok()) return result;
  for (const std::string& name : ListDirectory(directory).value_or(std::vector<std::string>())) {
    RemoveTree(absl::StrCat(directory, "/", name)).IgnoreError();
  }
  if (!existed) RemoveTree(directory).IgnoreError();
  return Annotate(result.status(), absl::StrCat("exporting ", image, " to ", directory));
}

}  // namespace rekindle::restore
