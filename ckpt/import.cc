#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/status.h"
#include "ckpt/capture.h"
#include "ckpt/staged_image.h"
#include "criu/image_files.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

// A read-only mapping of a whole file.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Map(const std::string& path) {
    RK_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDONLY));
    struct stat info;
    if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("reading ", path));
    MappedFile file;
    file.size_ = static_cast<size_t>(info.st_size);
    if (file.size_ == 0) return file;
    file.data_ = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (file.data_ == MAP_FAILED) {
      file.data_ = nullptr;
      return ErrnoStatus(errno, absl::StrCat("mapping ", path));
    }
    ::madvise(file.data_, file.size_, MADV_SEQUENTIAL);
    return file;
  }
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  ~MappedFile() {
    if (data_) ::munmap(data_, size_);
  }
  absl::Span<const std::byte> span() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  MappedFile() = default;
  void* data_ = nullptr;
  size_t size_ = 0;
};

bool IsPagesImage(const std::string& name) {
  return absl::StartsWith(name, "pages-") && absl::EndsWith(name, ".img");
}

absl::Status DescribeFromImages(const StagedImage& staged, v1::JobManifest* manifest) {
  auto pstree = staged.files.find("pstree.img");
  if (pstree == staged.files.end()) {
    return absl::FailedPreconditionError("it has no pstree.img: give the folder that `criu dump -D` wrote");
  }
  RK_ASSIGN_OR_RETURN(std::vector<criu::PstreeEntry> tree, criu::ParsePstree(pstree->second));
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
                                                     uid_t owner, CaptureObserver* observer) {
  std::string context = absl::StrCat("importing ", directory);
  Stopwatch watch;
  auto names = ListDirectory(directory);
  if (!names.ok()) return Annotate(names.status(), context);

  StagedImage staged;
  std::vector<std::unique_ptr<MappedFile>> mappings;
  for (const std::string& name : *names) {
    // Statistics and logs are no part of the state.
    if (!absl::EndsWith(name, ".img")) continue;
    std::string path = absl::StrCat(directory, "/", name);
    if (IsPagesImage(name)) {
      RK_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Map(path));
      mappings.push_back(std::make_unique<MappedFile>(std::move(file)));
      if (!mappings.back()->span().empty()) staged.pages[name] = {mappings.back()->span()};
    } else {
      RK_ASSIGN_OR_RETURN(staged.files[name], ReadFile(path));
    }
  }
  if (!staged.files.contains("inventory.img")) {
    return absl::FailedPreconditionError(
        absl::StrCat(context,
                     ": it has no inventory.img, so it is not a complete CRIU image; give the folder that "
                     "`criu dump -D` wrote"));
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
  return writer->Commit([&](uint64_t done, uint64_t total) {
    if (observer) observer->OnProgress({"import", done, total, watch.seconds()});
    return true;
  });
}

}  // namespace rekindle::ckpt
