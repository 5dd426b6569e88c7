#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/guarded_mapping.h"
#include "base/machine.h"
#include "base/open_in_root.h"
#include "base/status.h"
#include "ckpt/capture.h"
#include "ckpt/staged_image.h"
#include "criu/image_completeness.h"
#include "criu/image_files.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

// How much of a file is read between two looks at whether the import is still wanted.
constexpr size_t kReadBytes = 4u << 20;

absl::Status ImportCancelled() {
  return absl::CancelledError("the import was cancelled; nothing of it is left");
}

// The folder is whoever's, and he may change it meanwhile: what is read is a regular file that lies in it.
class CriuFolder {
 public:
  static absl::StatusOr<CriuFolder> Open(const std::string& path, const std::atomic<bool>* cancel) {
    CriuFolder folder(cancel);
    RK_ASSIGN_OR_RETURN(folder.fd_, OpenFile(path, O_RDONLY | O_DIRECTORY));
    return folder;
  }

  absl::StatusOr<std::vector<std::string>> Names() const {
    return ListDirectory(absl::StrCat("/proc/self/fd/", fd_.get()));
  }

  absl::StatusOr<UniqueFd> OpenImage(const std::string& name) const {
    if (cancel_ && cancel_->load()) return ImportCancelled();
    RK_ASSIGN_OR_RETURN(UniqueFd place, OpenBeneath(fd_.get(), name));
    auto file = OpenFileAt(place.get());
    if (!absl::IsFailedPrecondition(file.status())) return file;
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is no regular file (a link, a pipe or a device): put the file itself there"));
  }

  absl::StatusOr<std::string> Read(const std::string& name) const {
    RK_ASSIGN_OR_RETURN(const UniqueFd file, OpenImage(name));
    std::string content;
    for (size_t used = 0;;) {
      if (cancel_ && cancel_->load()) return ImportCancelled();
      content.resize(used + kReadBytes);
      const ssize_t n = ::read(file.get(), content.data() + used, kReadBytes);
      if (n < 0 && errno != EINTR) return ErrnoStatus(errno, absl::StrCat("reading ", name));
      used += static_cast<size_t>(std::max<ssize_t>(n, 0));
      content.resize(used);
      if (n == 0) return content;
    }
  }

  absl::StatusOr<GuardedMapping> Map(const std::string& name) const {
    RK_ASSIGN_OR_RETURN(const UniqueFd file, OpenImage(name));
    struct stat info;
    if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("reading ", name));
    return GuardedMapping::Map(file.get(), 0, static_cast<uint64_t>(info.st_size), name);
  }

 private:
  explicit CriuFolder(const std::atomic<bool>* cancel) : cancel_(cancel) {}

  UniqueFd fd_;
  const std::atomic<bool>* cancel_;
};

// Of pages that could not be read there are none: they would be zeros in the image.
absl::Status AllRead(const std::vector<GuardedMapping>& mappings) {
  for (const GuardedMapping& mapping : mappings) {
    if (mapping.lost()) return mapping.LostStatus();
  }
  return absl::OkStatus();
}

bool IsPagesImage(const std::string& name) {
  return absl::StartsWith(name, "pages-") && absl::EndsWith(name, ".img");
}

absl::Status DescribeFromImages(const StagedImage& staged, v1::JobManifest* manifest) {
  RK_ASSIGN_OR_RETURN(std::vector<criu::PstreeEntry> tree, criu::ParsePstree(staged.files.at("pstree.img")));
  if (tree.empty()) return absl::DataLossError("its pstree.img names no process");
  manifest->set_root_pid(tree[0].pid);
  std::set<pid_t> members;
  for (const criu::PstreeEntry& process : tree) members.insert(process.pid);
  manifest->set_shell_job(!members.contains(tree[0].sid));
  for (const criu::PstreeEntry& process : tree) {
    v1::JobProcess* entry = manifest->add_processes();
    entry->set_pid(process.pid);
    entry->set_parent_pid(process.ppid);
    entry->set_threads(static_cast<uint32_t>(process.threads.size()));
  }
  manifest->set_command(absl::StrCat("imported process ", tree[0].pid));
  // Whatever the dump was allowed to take in, the restore must be allowed to bring back.
  manifest->set_file_locks(true);
  manifest->set_external_unix_sockets(true);
  manifest->set_tcp_established(true);
  RecordNeededFiles(staged, manifest);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<store::ImageInfo> ImportCriuDirectory(store::Store& store, const std::string& directory,
                                                     const std::string& reference, const std::string& parent,
                                                     uid_t owner, CaptureObserver* observer,
                                                     const std::atomic<bool>* cancel) {
  const std::string context = absl::StrCat("importing ", directory);
  Stopwatch watch;
  auto folder = CriuFolder::Open(directory, cancel);
  if (struct stat info; !folder.ok() && ::stat(directory.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(
        context,
        ": it is a file, and no folder that 'criu dump' made: an image of Rekindle's own is given with "
        "--file; unpack the archive of a container's checkpoint (podman's, the kubelet's), and name its "
        "folder checkpoint"));
  }
  if (ErrnoOf(folder.status()) == ENOTDIR) {
    return absl::FailedPreconditionError(
        absl::StrCat(context, ": it is no folder: name the one that 'criu dump' made"));
  }
  if (!folder.ok()) return Annotate(folder.status(), context);
  auto names = folder->Names();
  if (!names.ok()) return Annotate(names.status(), context);

  StagedImage staged;
  std::vector<GuardedMapping> mappings;
  for (const std::string& name : *names) {
    // Statistics and logs are no part of the state.
    if (!absl::EndsWith(name, ".img")) continue;
    if (IsPagesImage(name)) {
      auto mapping = folder->Map(name);
      if (!mapping.ok()) return Annotate(mapping.status(), context);
      if (mapping->bytes().empty()) continue;
      staged.pages[name] = {mapping->bytes()};
      mappings.push_back(*std::move(mapping));
    } else {
      auto content = folder->Read(name);
      if (!content.ok()) return Annotate(content.status(), context);
      staged.files[name] = *std::move(content);
    }
  }
  if (absl::Status complete = criu::CheckComplete(staged.files); !complete.ok()) {
    const bool is_checkpoint =
        staged.files.empty() && std::find(names->begin(), names->end(), "checkpoint") != names->end();
    if (!is_checkpoint) return Annotate(complete, context);
    return absl::FailedPreconditionError(
        absl::StrCat(context,
                     ": it is the checkpoint of a container (podman's, the kubelet's), with CRIU's images in "
                     "its folder checkpoint: name ",
                     directory, "/checkpoint"));
  }
  v1::JobManifest manifest;
  manifest.set_format(1);
  manifest.set_captured_unix_ns(UnixNanos());
  RK_ASSIGN_OR_RETURN(Machine machine, ThisMachine());
  manifest.set_machine(machine.architecture);
  if (absl::Status status = DescribeFromImages(staged, &manifest); !status.ok())
    return Annotate(status, context);

  store::NewImageOptions options;
  options.reference = reference;
  options.parent = parent;
  options.owner = owner;
  options.labels[v1::kCommandLabel] = manifest.command();
  RK_ASSIGN_OR_RETURN(auto writer, store.NewImage(options));
  if (absl::Status status = AddToImage(staged, *writer, &manifest); !status.ok())
    return Annotate(status, context);
  RK_RETURN_IF_ERROR(writer->AddBlob(v1::kJobManifestObject, manifest.SerializeAsString()));
  auto info = writer->Commit([&](uint64_t done, uint64_t total) {
    if (observer) observer->OnProgress({"import", done, total, watch.seconds()});
    return !(cancel && cancel->load()) && AllRead(mappings).ok();
  });
  if (absl::Status read = AllRead(mappings); !read.ok()) {
    if (info.ok()) RK_RETURN_IF_ERROR(store.RemoveExactly(*info));
    return Annotate(read, context);
  }
  return info;
}

}  // namespace rekindle::ckpt
