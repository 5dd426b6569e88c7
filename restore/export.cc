#include <sys/stat.h>

#include <atomic>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "criu/lost_names.h"
#include "restore/clone_shared_memory.h"
#include "restore/file_content.h"
#include "restore/image_directory.h"
#include "restore/pages_file.h"
#include "restore/restore.h"

namespace rekindle::restore {
namespace {

// CRIU alone would look for names that only our restore makes. How many files that adds.
absl::StatusOr<uint32_t> WriteNamelessMemory(const store::ImageReader& image, const v1::JobManifest& manifest,
                                             const std::string& directory) {
  std::map<std::string, criu::LinkReplacement> files;
  std::map<std::string, const v1::WrittenFile*> contents;
  for (const v1::WrittenFile& file : manifest.written_files()) {
    if (!IsNamelessMemory(file)) continue;
    criu::LinkReplacement& ghost = files[file.path()];
    ghost.uid = file.uid();
    ghost.gid = file.gid();
    ghost.mode = S_IFREG | file.mode();
    contents[file.path()] = &file;
  }
  if (files.empty()) return 0;
  const std::string remaps_path = absl::StrCat(directory, "/remap-fpath.img");
  RK_ASSIGN_OR_RETURN(const std::string regular, ReadFile(absl::StrCat(directory, "/files.img")));
  std::string remaps;
  const bool had_remaps = PathExists(remaps_path);
  if (had_remaps) {
    RK_ASSIGN_OR_RETURN(remaps, ReadFile(remaps_path));
  }
  RK_ASSIGN_OR_RETURN(std::vector<criu::Ghost> ghosts, criu::MakeGhosts(files, regular, &remaps));
  for (const criu::Ghost& ghost : ghosts) {
    RK_ASSIGN_OR_RETURN(const FileContent content, FileContent::Open(image, *contents[ghost.path]));
    RK_RETURN_IF_ERROR(content.WriteBehind(ghost.image_head, absl::StrCat(directory, "/", ghost.image_file)));
  }
  RK_RETURN_IF_ERROR(WriteFileAtomically(remaps_path, remaps, 0600));
  return static_cast<uint32_t>(ghosts.size()) + (had_remaps ? 0 : 1);
}

absl::StatusOr<ExportResult> WriteAll(const store::ImageReader& image, const std::string& directory,
                                      RestoreObserver* observer) {
  Stopwatch watch;
  RK_ASSIGN_OR_RETURN(v1::JobManifest manifest, ReadJobManifest(image));
  RK_ASSIGN_OR_RETURN(BlobCount blobs, WriteCriuFiles(image, directory, nullptr));
  RK_ASSIGN_OR_RETURN(const uint32_t ghosts, WriteNamelessMemory(image, manifest, directory));
  ExportResult result{blobs.files + ghosts, blobs.bytes};
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
