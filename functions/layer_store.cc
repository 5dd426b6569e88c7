#include "functions/layer_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "functions/sealed_folder.h"
#include "functions/service_folders.h"

namespace rekindle::functions {
namespace {

constexpr absl::string_view kLayers = "/.layers";
constexpr size_t kDigestDigits = 64;
constexpr uint64_t kBlock = 512;  // of what stat(2) tells
// The service's, whoever may read the folder.
constexpr char kBytesAttribute[] = "trusted.rekindle.bytes";

// Follows no links. What vanishes meanwhile does not count.
uint64_t BytesIn(const std::string& path) {
  uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator at(path, error), end; !error && at != end;
       at.increment(error)) {
    struct stat info;
    // Not what a file only says that it has.
    if (::lstat(at->path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
      bytes += std::min(static_cast<uint64_t>(info.st_size), static_cast<uint64_t>(info.st_blocks) * kBlock);
  }
  return bytes;
}

// So that nobody has to look through all of it again after a start.
void NoteBytes(const std::string& path, uint64_t bytes) {
  ::setxattr(path.c_str(), kBytesAttribute, &bytes, sizeof bytes, 0);  // where the file system has such
}

uint64_t NotedOrMeasured(const std::string& path) {
  uint64_t bytes = 0;
  if (::lgetxattr(path.c_str(), kBytesAttribute, &bytes, sizeof bytes) == sizeof bytes) return bytes;
  bytes = BytesIn(path);
  NoteBytes(path, bytes);
  return bytes;
}

// `root`, and in it the folder that the owner's files are to be copied into.
absl::StatusOr<UniqueFd> MakePlaces(const std::string& root, const std::string& relative,
                                    const Owner& owner) {
  if (relative.empty()) return MakeFolderFor(root, owner);
  RK_RETURN_IF_ERROR(MakeFolder(root, 0700));
  std::string way = root;
  for (const std::filesystem::path& part : std::filesystem::path(relative).parent_path()) {
    way = absl::StrCat(way, "/", part.string());
    RK_RETURN_IF_ERROR(MakeFolder(way, 0755));
  }
  return MakeFolderFor(absl::StrCat(root, "/", relative), owner);
}

// Surveys (`target` -1), or copies; with the calling thread's rights.
absl::Status TakeLayer(const LayerFolder& folder, int target, CodeCopier& copier) {
  // Where the same contents lie in another place they are another layer.
  copier.AddToDigest(folder.place);
  copier.AddToDigest(folder.environment);
  return target < 0 ? copier.Survey(folder.source) : copier.Copy(folder.source, target);
}

// Of one whose place is not that of its files.
absl::Status FinishLayer(const LayerFolder& folder, const std::string& root, const UniqueFd& target) {
  if (folder.place.empty()) return absl::OkStatus();
  if (::fchmod(target.get(), 0755) != 0) return ErrnoStatus(errno, absl::StrCat("finishing ", root));
  if (folder.environment.empty()) return absl::OkStatus();
  return WriteFileAtomically(absl::StrCat(root, "/", kEnvironmentFile), folder.environment, 0644);
}

}  // namespace

bool IsLayerDigest(absl::string_view text) {
  return text.size() == kDigestDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
         });
}

Layer::~Layer() { *any_gone_ = true; }

uint64_t Layer::bytes() const {
  absl::MutexLock lock(&mutex_);
  if (!bytes_) bytes_ = NotedOrMeasured(path_);
  return *bytes_;
}

std::string LayerStore::PathOf(const LayerKey& key) const {
  return absl::StrCat(functions_, kLayers, "/", key.first, "/", key.second);
}

absl::StatusOr<LayerPtr> LayerStore::Present(const LayerKey& key) {
  const std::string path = PathOf(key);
  struct stat info;
  const int error = !IsLayerDigest(key.second) ? ENOENT : ::lstat(path.c_str(), &info) == 0 ? 0 : errno;
  if (error == ENOENT || error == ENOTDIR)
    return absl::NotFoundError(absl::StrCat("the layer ", path, " is missing"));
  if (error != 0) return ErrnoStatus(error, absl::StrCat("looking at the layer ", path));
  std::weak_ptr<const Layer>& known = layers_[key];
  LayerPtr layer = known.lock();
  if (layer == nullptr) {
    const auto size = sizes_.find(key);
    // Measured when it is asked for: no start is to wait for all the files of all layers.
    layer = LayerPtr(
        new Layer(key, path, size == sizes_.end() ? std::nullopt : std::optional(size->second), any_gone_));
    known = layer;
  }
  return layer;
}

uint64_t LayerStore::SizeOf(const LayerKey& key) {
  const auto [size, is_new] = sizes_.try_emplace(key, 0);
  if (!is_new) return size->second;
  const auto known = layers_.find(key);
  const LayerPtr layer = known == layers_.end() ? nullptr : known->second.lock();
  size->second = layer != nullptr ? layer->bytes() : NotedOrMeasured(PathOf(key));
  return size->second;
}

absl::StatusOr<LayerPtr> LayerStore::Find(const LayerKey& key) {
  absl::MutexLock lock(&mutex_);
  return Present(key);
}

absl::StatusOr<LayerPtr> LayerStore::Bring(const LayerFolder& folder, const Owner& owner,
                                           const CodeCopyOptions& options, const PrepareLayer& prepare) {
  // It parts the folders of REKINDLE_LAYERS, PATH and NODE_PATH.
  if (absl::StrContains(functions_, ':')) {
    return absl::FailedPreconditionError(absl::StrCat(
        "layers would lie below ", functions_,
        ", and nothing finds modules and programs below a folder that has a colon in its name: give "
        "rekindled another --store, or deploy without layers"));
  }
  CodeCopyOptions survey = options;
  survey.without_compiled = true;
  survey.may_take = nullptr;
  survey.progress = nullptr;
  uint64_t bytes = 0;
  std::string digest;
  const auto take = [&](const CodeCopyOptions& how, int target) {
    return WithFileRightsOf(owner, [&]() -> absl::Status {
      CodeCopier copier(how);
      RK_RETURN_IF_ERROR(TakeLayer(folder, target, copier));
      bytes = copier.bytes() + folder.environment.size();
      digest = copier.Digest();
      return absl::OkStatus();
    });
  };
  RK_RETURN_IF_ERROR(take(survey, -1));
  {
    absl::MutexLock lock(&mutex_);
    if (auto layer = Present({owner.uid, digest}); !absl::IsNotFound(layer.status())) return layer;
  }
  RK_ASSIGN_OR_RETURN(TemporaryDirectory staging, TemporaryDirectory::Make(functions_, kStagingPrefix));
  const std::string made = absl::StrCat(staging.path(), "/layer");
  RK_ASSIGN_OR_RETURN(const UniqueFd target, MakePlaces(made, folder.place, owner));
  CodeCopyOptions copy = options;
  copy.without_compiled = true;
  RK_RETURN_IF_ERROR(take(copy, target.get()));  // it may have been changed meanwhile
  RK_RETURN_IF_ERROR(FinishLayer(folder, made, target));
  RK_RETURN_IF_ERROR(SealOrGive(made, owner));
  const LayerKey key{owner.uid, digest};
  if (prepare) {
    RK_RETURN_IF_ERROR(MakeFolder(staging.path(), kThroughOnly));
    RK_RETURN_IF_ERROR(prepare(made, PathOf(key)));
  }
  RK_ASSIGN_OR_RETURN(const UniqueFd staged, OpenFile(staging.path(), O_RDONLY | O_DIRECTORY));
  if (::syncfs(staged.get()) != 0) return ErrnoStatus(errno, absl::StrCat("syncing ", staging.path()));
  // Some file systems know only now what it takes. A note that is lost is made again.
  if (prepare) bytes = BytesIn(made);
  NoteBytes(made, bytes);

  const std::string of_owner = absl::StrCat(functions_, kLayers, "/", owner.uid);
  const std::string root = absl::StrCat(functions_, kLayers);
  absl::MutexLock lock(&mutex_);
  if (auto layer = Present(key); !absl::IsNotFound(layer.status())) return layer;
  RK_RETURN_IF_ERROR(MakeFolder(root, kThroughOnly));
  RK_RETURN_IF_ERROR(MakeFolder(of_owner, kThroughOnly));
  const std::string path = PathOf(key);
  if (::rename(made.c_str(), path.c_str()) != 0)
    return ErrnoStatus(errno, absl::StrCat("moving a layer to ", path));
  // The way to it, too: the record that will need it is there after a power cut.
  for (const std::string& way : {of_owner, root, functions_}) RK_RETURN_IF_ERROR(SyncFolder(way));
  sizes_[key] = bytes;
  return Present(key);
}

std::vector<LayerKey> LayerStore::All() const {
  std::vector<LayerKey> keys;
  const std::string root = absl::StrCat(functions_, kLayers);
  auto owners = ListDirectory(root);
  for (const std::string& owner : owners.ok() ? *owners : std::vector<std::string>()) {
    uid_t uid = 0;
    if (!absl::SimpleAtoi(owner, &uid)) continue;
    auto digests = ListDirectory(absl::StrCat(root, "/", owner));
    for (const std::string& digest : digests.ok() ? *digests : std::vector<std::string>()) {
      if (IsLayerDigest(digest)) keys.emplace_back(uid, digest);
    }
  }
  return keys;
}

void LayerStore::SealAll() {
  for (const LayerKey& key : All()) {
    const Owner owner{key.first, 0, {}};
    if (IsSealed(PathOf(key), owner)) continue;
    if (const absl::Status sealed = SealFolder(PathOf(key), owner); !sealed.ok())
      Log(LogLevel::kWarning, absl::StrCat("a layer that its owner can change: ", sealed.message()));
  }
}

std::map<LayerKey, uint64_t> LayerStore::Sizes() {
  std::map<LayerKey, uint64_t> sizes;
  absl::MutexLock lock(&mutex_);
  for (const LayerKey& key : All()) sizes[key] = SizeOf(key);
  return sizes;
}

void LayerStore::Tidy(const std::function<absl::StatusOr<std::set<LayerKey>>()>& wanted) {
  std::vector<TemporaryDirectory> gone;  // removed outside of the lock
  absl::MutexLock lock(&mutex_);
  std::vector<LayerKey> idle = All();
  std::erase_if(idle, [&](const LayerKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto known = layers_.find(key);
    return known != layers_.end() && !known->second.expired();
  });
  if (idle.empty()) return;
  const absl::StatusOr<std::set<LayerKey>> kept = wanted();
  if (!kept.ok()) return;
  for (const LayerKey& key : idle) {
    if (kept->contains(key)) continue;
    auto removed = TemporaryDirectory::Make(functions_, kRemovedPrefix);
    const std::string path = PathOf(key);
    // Where it lies it is gone at once, also when a crash interrupts the removal.
    if (!removed.ok() || ::rename(path.c_str(), absl::StrCat(removed->path(), "/layer").c_str()) != 0) {
      Log(LogLevel::kWarning, absl::StrCat("the layer ", path, " could not be removed; it is tried again"));
      *any_gone_ = true;
      continue;
    }
    gone.push_back(*std::move(removed));
    layers_.erase(key);
    sizes_.erase(key);
    ::rmdir(absl::StrCat(functions_, kLayers, "/", key.first).c_str());  // fails while it has others
  }
  ::rmdir(absl::StrCat(functions_, kLayers).c_str());
}

}  // namespace rekindle::functions
