#include <sys/stat.h>

#include <atomic>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "criu/image_files.h"
#include "criu/lost_names.h"
#include "restore/clone_shared_memory.h"
#include "restore/export_folder.h"
#include "restore/file_content.h"
#include "restore/image_directory.h"
#include "restore/pages_file.h"
#include "restore/restore.h"

namespace rekindle::restore {
namespace {

// CRIU alone would look for names that only our restore makes. How many files that adds.
absl::StatusOr<uint32_t> WriteNamelessMemory(const store::ImageReader& image, const v1::JobManifest& manifest,
                                             ExportFolder& folder, const std::atomic<bool>* cancel) {
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
  constexpr char kRemaps[] = "remap-fpath.img";
  RK_ASSIGN_OR_RETURN(const std::string regular, folder.Read("files.img"));
  std::string remaps;
  const bool had_remaps = folder.Has(kRemaps);
  if (had_remaps) {
    RK_ASSIGN_OR_RETURN(remaps, folder.Read(kRemaps));
  }
  RK_ASSIGN_OR_RETURN(std::vector<criu::Ghost> ghosts, criu::MakeGhosts(files, regular, &remaps));
  for (const criu::Ghost& ghost : ghosts) {
    RK_ASSIGN_OR_RETURN(const FileContent content, FileContent::Open(image, *contents[ghost.path]));
    RK_ASSIGN_OR_RETURN(const UniqueFd file, folder.Make(ghost.image_file));
    RK_RETURN_IF_ERROR(
        content.WriteBehind(ghost.image_head, file.get(), folder.PathOf(ghost.image_file), cancel));
  }
  RK_RETURN_IF_ERROR(folder.Replace(kRemaps, remaps));
  return static_cast<uint32_t>(ghosts.size()) + (had_remaps ? 0 : 1);
}

absl::StatusOr<ExportResult> WriteAll(const store::ImageReader& image, ExportFolder& folder,
                                      RestoreObserver* observer, const std::atomic<bool>* cancel) {
  Stopwatch watch;
  RK_ASSIGN_OR_RETURN(v1::JobManifest manifest, ReadJobManifest(image));
  const auto make = [&](const std::string& name) -> absl::StatusOr<UniqueFd> {
    if (cancel != nullptr && *cancel) return absl::CancelledError("cancelled");
    return folder.Make(name);
  };
  RK_ASSIGN_OR_RETURN(BlobCount blobs, WriteCriuFiles(image, make, nullptr));
  RK_ASSIGN_OR_RETURN(const uint32_t ghosts, WriteNamelessMemory(image, manifest, folder, cancel));
  ExportResult result;
  result.files = blobs.files + ghosts;
  result.bytes = blobs.bytes;
  if (constexpr char kFiles[] = "files.img"; folder.Has(kFiles)) {
    RK_ASSIGN_OR_RETURN(const std::string open_files, folder.Read(kFiles));
    RK_ASSIGN_OR_RETURN(result.semaphores, criu::CountSemaphores(open_files));
  }
  uint64_t total = image.info().stats.logical_bytes;
  std::atomic<uint64_t> done{blobs.bytes};
  for (const v1::PagesObject& object : manifest.pages()) {
    RK_ASSIGN_OR_RETURN(criu::Pagemap pagemap, ReadPagemap(image, object));
    const std::string name = absl::StrCat("pages-", object.pages_id(), ".img");
    RK_ASSIGN_OR_RETURN(const UniqueFd file, make(name));
    RK_RETURN_IF_ERROR(
        WritePagesFile(image, object, pagemap, file.get(), folder.PathOf(name), &done, cancel));
    ++result.files;
    result.bytes += pagemap.present_pages() * store::kPageSize;
    if (observer) observer->OnProgress({"export", result.bytes, total, watch.seconds()});
  }
  return result;
}

}  // namespace

absl::StatusOr<ExportResult> ExportCriuDirectory(const store::Store& store, const std::string& image,
                                                 const std::string& directory, uid_t caller,
                                                 RestoreObserver* observer, const std::atomic<bool>* cancel) {
  RK_ASSIGN_OR_RETURN(auto reader, store.OpenImage(image));
  const auto write = [&]() -> absl::StatusOr<ExportResult> {
    RK_ASSIGN_OR_RETURN(ExportFolder folder, ExportFolder::Open(directory, caller));
    RK_ASSIGN_OR_RETURN(const ExportResult result, WriteAll(*reader, folder, observer, cancel));
    RK_RETURN_IF_ERROR(folder.Finish());
    return result;
  };
  auto result = write();
  if (result.ok()) return result;
  if (absl::IsCancelled(result.status())) {
    return absl::CancelledError(absl::StrCat("exporting ", image, " to ", directory,
                                             " was cancelled; what was written is removed again"));
  }
  return Annotate(result.status(), absl::StrCat("exporting ", image, " to ", directory));
}

}  // namespace rekindle::restore
