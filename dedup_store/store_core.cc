#include "dedup_store/store_core.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/awaited_mount.h"
#include "base/error_cause.h"
#include "base/file.h"
#include "base/log.h"
#include "base/near_words.h"
#include "base/status.h"
#include "dedup_store/catalog_rebuild.h"
#include "dedup_store/coding.h"
#include "dedup_store/prepared.h"
#include "dedup_store/store_folders.h"

namespace rekindle::store {

namespace {

constexpr size_t kMinDigestPrefix = 12;

enum class FolderKind {
  kStore,
  kFresh,  // nothing but what an interrupted creation or a new file system left: a store may be made here
  kOther,
};

// By a list of what is there: of a single name NFS may remember that there was no such file, though another
// node has made it since.
absl::StatusOr<FolderKind> LookAt(const std::string& path) {
  if (struct stat info; ::stat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode))
    return NotAStore(path, "it is a file, not a folder");
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(path));
  if (std::find(names.begin(), names.end(), "FORMAT") != names.end()) return FolderKind::kStore;
  for (const std::string& name : names) {
    if (name == "lost+found" || absl::StartsWith(name, "FORMAT.")) continue;
    if (std::find(std::begin(kFolders), std::end(kFolders), name) == std::end(kFolders))
      return FolderKind::kOther;
    if (name == "catalog") continue;
    RK_ASSIGN_OR_RETURN(std::vector<std::string> inner, ListDirectory(path + "/" + name));
    if (!inner.empty()) return FolderKind::kOther;
  }
  return FolderKind::kFresh;
}

// To a file system that is not mounted, most likely: nothing is made in its place.
absl::Status CheckLeadsSomewhere(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode) || ::stat(path.c_str(), &info) == 0 ||
      errno != ENOENT)
    return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(const std::string target, ReadLink(path));
  return WithCause(absl::NotFoundError(
                       absl::StrCat("there is no store at ", path, ": it is a symbolic link to ", target,
                                    ", which is not there. Mount what is to be there, or make the folder")),
                   kCauseNotMounted);
}

absl::Status Create(const std::string& path, BlockIo* io) {
  RK_RETURN_IF_ERROR(MakeDirectories(path, 0700));
  // Two processes of one node that make one store at the same time take turns. Other nodes know nothing of a
  // lock on a folder: between them the catalog's lock and WriteFirstIdentity decide.
  RK_ASSIGN_OR_RETURN(UniqueFd lock, OpenFile(path, O_RDONLY | O_DIRECTORY));
  RK_RETURN_IF_ERROR(AwaitLock(lock, LOCK_EX, path));
  RK_ASSIGN_OR_RETURN(FolderKind kind, LookAt(path));
  if (kind == FolderKind::kOther) {
    // Another node may have made it since the list of names was read, and have put something in.
    RK_ASSIGN_OR_RETURN(kind, LookAt(path));
  }
  if (kind == FolderKind::kStore) return absl::OkStatus();
  if (kind == FolderKind::kOther) return NotAStore(path, "the folder is not empty and has no file FORMAT");
  for (const char* name : kFolders) RK_RETURN_IF_ERROR(MakeDirectories(absl::StrCat(path, "/", name), 0700));
  const StoreIdentity identity = NewIdentity();
  RK_RETURN_IF_ERROR(Catalog::Create(path + "/catalog", io));
  return WriteFirstIdentity(path, identity);
}

absl::string_view NameOf(absl::string_view image) { return image.substr(0, image.find_first_of(":@")); }

// Can one be a slip of the pen for the other?
bool IsClose(absl::string_view asked, absl::string_view name) {
  const size_t most = asked.size() / 3;
  return WordDistance(asked, name, most) <= most;
}

// The closest there is takes a look at every image: only who has nothing else to say looks for it.
enum class Hint { kNone, kClosest };

absl::Status ImageNotFound(absl::string_view image, const MaySee& may_see, Hint wanted, Catalog::Txn& txn) {
  std::string hint;
  if (wanted == Hint::kClosest) {
    // Another image of the job that is meant, or may be meant: no other job's, for somebody might restore it.
    std::string newest_of_name, closest;
    size_t least = 0;
    bool any = false;
    txn.ForEachImage([&](const ImageRecord& record) {
      any = true;
      const std::string& reference = record.info.reference;
      if (IsPrepared(record.info) || (may_see && !may_see(record.info))) return;
      // They come as they were committed.
      if (NameOf(reference) == NameOf(image)) newest_of_name = reference;
      if (!IsClose(NameOf(image), NameOf(reference))) return;
      const size_t distance = WordDistance(image, reference, std::max(image.size(), reference.size()));
      if (!closest.empty() && distance > least) return;
      closest = reference;
      least = distance;
    });
    const std::string& best = newest_of_name.empty() ? closest : newest_of_name;
    if (!any) hint = ". The store has no images";
    if (!best.empty()) hint = absl::StrCat(". The closest there is: ", best);
  }
  return absl::NotFoundError(absl::StrCat("there is no image ", image, hint));
}

// Those that may be seen.
absl::StatusOr<std::vector<ImageRecord>> WithDigest(absl::string_view hex, const MaySee& may_see,
                                                    Catalog::Txn& txn) {
  RK_ASSIGN_OR_RETURN(std::vector<ImageRecord> found, txn.FindDigest(absl::AsciiStrToLower(hex)));
  std::erase_if(found, [&](const ImageRecord& record) {
    return IsPrepared(record.info) || (may_see && !may_see(record.info));
  });
  return found;
}

absl::StatusOr<ImageRecord> ResolveDigest(absl::string_view image, absl::string_view digest,
                                          const MaySee& may_see, Hint hint, Catalog::Txn& txn) {
  absl::string_view hex = digest;
  if (!absl::ConsumePrefix(&hex, "sha256:") || hex.size() < kMinDigestPrefix || hex.size() > 64 ||
      !std::all_of(hex.begin(), hex.end(), [](char c) { return absl::ascii_isxdigit(c); })) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", image, "': a digest is written sha256: and 12 to 64 hexadecimal digits"));
  }
  RK_ASSIGN_OR_RETURN(std::vector<ImageRecord> found, WithDigest(hex, may_see, txn));
  if (found.empty()) return ImageNotFound(image, may_see, hint, txn);
  for (const ImageRecord& record : found) {
    if (record.info.digest != found.back().info.digest) {
      return absl::InvalidArgumentError(absl::StrCat("'", image, "' fits several images, among them ",
                                                     record.info.digest, " and ", found.back().info.digest,
                                                     ". Give more digits."));
    }
  }
  return found.back();
}

absl::StatusOr<ImageRecord> ResolveIn(absl::string_view image, const MaySee& may_see, Hint hint,
                                      Catalog::Txn& txn) {
  if (absl::StartsWith(image, "sha256:")) return ResolveDigest(image, image, may_see, hint, txn);
  size_t at = image.find('@');
  RK_ASSIGN_OR_RETURN(std::string reference, NormalizeReference(image.substr(0, at)));
  RK_ASSIGN_OR_RETURN(std::optional<ImageRecord> record, txn.FindReference(reference));
  if (at == absl::string_view::npos) {
    if (!record) return ImageNotFound(reference, may_see, hint, txn);
    return *std::move(record);
  }
  // Of name@digest the digest counts; the tag may have moved on since.
  absl::string_view digest = image.substr(at + 1);
  absl::string_view name = absl::string_view(reference).substr(0, reference.find(':'));
  RK_RETURN_IF_ERROR(ResolveDigest(image, digest, may_see, hint, txn).status());
  RK_ASSIGN_OR_RETURN(std::vector<ImageRecord> found,
                      WithDigest(digest.substr(sizeof("sha256:") - 1), may_see, txn));
  auto of_name = found.rend();
  for (auto it = found.rbegin(); it != found.rend(); ++it) {
    if (it->info.reference == reference) return *it;
    if (of_name == found.rend() && absl::StartsWith(it->info.reference, absl::StrCat(name, ":")))
      of_name = it;
  }
  if (of_name != found.rend()) return *of_name;
  return ImageNotFound(image, may_see, hint, txn);
}

}  // namespace

StoreCore::StoreCore(const StoreOptions& options, const StoreIdentity& identity)
    : path_(options.path),
      io_(options.io != nullptr ? options.io : RealBlockIo()),
      identity_(identity),
      fingerprinter_(identity.seed),
      read_only_(options.read_only),
      threads_(options.worker_threads != 0 ? options.worker_threads
                                           : std::max(1u, std::thread::hardware_concurrency())),
      compression_level_(options.compression_level),
      beside_(options.beside) {}

absl::StatusOr<StoreCore::FolderId> StoreCore::FolderAt(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("looking at ", path));
  return FolderId(info.st_dev, info.st_ino);
}

absl::StatusOr<std::shared_ptr<StoreCore>> StoreCore::Open(const StoreOptions& options) {
  const std::string& path = options.path;
  if (!PathExists(FormatPath(path))) {
    const bool there = PathExists(path);
    RK_RETURN_IF_ERROR(CheckLeadsSomewhere(path));
    RK_ASSIGN_OR_RETURN(const FolderKind kind, there ? LookAt(path) : FolderKind::kFresh);
    const bool fresh = kind == FolderKind::kFresh;
    if (const std::string awaited = fresh ? AwaitedMountPoint(path) : ""; !awaited.empty()) {
      return WithCause(absl::NotFoundError(absl::StrCat(
                           "there is no store at ", path, ", and nothing is mounted at ", awaited,
                           ", where /etc/fstab has a file system, which would hide a store that is made "
                           "now: mount it (mount ",
                           awaited, "), or take it out of /etc/fstab")),
                       kCauseNotMounted);
    }
    if (fresh && (options.read_only || !options.create)) {
      return WithCause(
          absl::NotFoundError(absl::StrCat(
              "there is no store at ", path, there ? " yet, the folder is empty" : "",
              ": the first 'rekindle ckpt' makes it, or name another with --store or REKINDLE_STORE")),
          there ? kCauseEmptyFolder : kCauseNoStore);
    }
    if (fresh) RK_RETURN_IF_ERROR(Create(path, options.io != nullptr ? options.io : RealBlockIo()));
  }
  RK_ASSIGN_OR_RETURN(StoreIdentity identity, ReadIdentity(path));
  if (!identity.problem.empty()) Log(LogLevel::kWarning, identity.problem);
  if (!options.read_only && access(path.c_str(), W_OK) != 0) {
    if (errno == EROFS) {
      return absl::PermissionDeniedError(
          absl::StrCat("the store ", path, " can't be written: ", kIsReadOnly));
    }
    return absl::PermissionDeniedError(
        absl::StrCat("the store ", path, " can't be written: ", ErrnoStatus(errno, "access").message(),
                     ". Open it read-only, or as its owner."));
  }
  auto core = std::shared_ptr<StoreCore>(new StoreCore(options, identity));
  RK_ASSIGN_OR_RETURN(core->folder_, FolderAt(path));
  RK_ASSIGN_OR_RETURN(core->opened_, OpenFile(path, O_PATH | O_DIRECTORY));
  auto catalog = Catalog::Open(path + "/catalog", core->io());
  if (absl::IsDataLoss(catalog.status()) && options.rebuild_catalog && !options.read_only) {
    RK_ASSIGN_OR_RETURN(const bool rebuilt, RebuildCatalog(path, core->io(), core->identity().uuid));
    if (rebuilt) core->rebuilt_because_ = std::string(catalog.status().message());
    catalog = Catalog::Open(path + "/catalog", core->io());
  }
  RK_RETURN_IF_ERROR(catalog.status());
  if (!options.read_only) core->MakeHelpFolders();
  core->catalog_ = *std::move(catalog);
  return core;
}

void StoreCore::MakeHelpFolders() const {
  if (!PathExists(packs_folder())) return;  // it is not mounted
  for (const char* name : kHelpFolders) (void)::mkdir(absl::StrCat(path_, "/", name).c_str(), 0700);
}

absl::Status StoreCore::CheckFoldersAreOurs() const {
  for (const char* name : kFolders) {
    const std::string folder = absl::StrCat(path_, "/", name);
    struct stat info;
    if (::lstat(folder.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(folder,
                     " is a symbolic link, and nothing is removed through one, since what it leads to may "
                     "be another's. Put the folder itself there; where it is to lie on another file "
                     "system, mount it (mount --bind)"));
  }
  return absl::OkStatus();
}

absl::Status StoreCore::CheckWritable() const {
  if (!read_only_) return CheckIsThere();
  return absl::PermissionDeniedError(absl::StrCat("the store ", path_, " was opened read-only"));
}

absl::Status StoreCore::CheckSomePackIsThere(const std::vector<PackRecord>& packs) const {
  const bool none = std::none_of(packs.begin(), packs.end(), [this](const PackRecord& record) {
    return PathExists(pack_path(record.id));
  });
  if (packs.empty() || !none) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("none of the ", packs.size(), " packs of the store is in ",
                                             packs_folder(), ". Is its file system mounted?"));
}

absl::Status StoreCore::CheckIsThere() const {
  const absl::StatusOr<FolderId> now = FolderAt(path_);
  // The folder in which it was mounted has none of what is in it.
  if (!now.ok() || *now != folder_ || !PathExists(packs_folder())) return StoreIsAway(path_);
  // One that is damaged or missing is told from the packs: it says nothing against them.
  const absl::StatusOr<StoreUuid> uuid = ReadUuid(path_);
  if (!uuid.ok() || *uuid == identity_.uuid) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the store at ", path_,
                   " is another one than was opened: it was removed and made anew. Try again: what is there "
                   "now is opened then"));
}

bool StoreCore::WasRemoved() const {
  // A folder that was renamed, or unmounted with its file system, has its name still.
  struct stat info;
  if (::fstat(opened_.get(), &info) == 0 && info.st_nlink == 0) return true;
  const absl::StatusOr<FolderId> now = FolderAt(path_);
  return now.ok() && *now == folder_ && !PathExists(packs_folder()) && !PathExists(FormatPath(path_));
}

absl::StatusOr<std::shared_ptr<const Pack>> StoreCore::OpenPack(uint64_t id) {
  {
    absl::MutexLock lock(&mutex_);
    if (auto pack = packs_.Find(id)) return pack;
  }
  // Not under mutex_: a gc of this process may hold the file's lock and need another pack before it lets go.
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, io_->Open(pack_path(id), false));
  RK_RETURN_IF_ERROR(file->Lock(LockMode::kShared, true).status());
  std::optional<DeadRecord> dead;
  {
    // Only what the catalog says after the lock was taken holds until it is released.
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, catalog_->ReadNow());
    RK_ASSIGN_OR_RETURN(std::optional<PackRecord> record, txn.FindPack(id));
    if (!record) {
      return absl::NotFoundError(absl::StrCat("pack ", pack_path(id), " is not part of the store any more"));
    }
    RK_ASSIGN_OR_RETURN(dead, txn.FindDead(id));
  }
  RK_ASSIGN_OR_RETURN(std::unique_ptr<Pack> opened, Pack::Open(std::move(file), id, identity_.uuid));
  if (dead) opened->set_dead(std::move(dead->dead));
  absl::MutexLock lock(&mutex_);
  return packs_.Put(id, std::move(opened));  // another thread may have been faster
}

void StoreCore::ForgetOpenPack(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  packs_.Erase(id);
}

absl::StatusOr<ImageRecord> StoreCore::Resolve(absl::string_view image, const MaySee& may_see) const {
  RK_ASSIGN_OR_RETURN(Catalog::Txn txn, catalog_->Read());
  absl::StatusOr<ImageRecord> found = ResolveIn(image, may_see, Hint::kNone, txn);
  if (!absl::IsNotFound(found.status())) return found;
  // Another node may have committed it a moment ago.
  RK_ASSIGN_OR_RETURN(Catalog::Txn now, catalog_->ReadNow());
  return ResolveIn(image, may_see, Hint::kClosest, now);
}

absl::StatusOr<std::optional<ImageInfo>> StoreCore::FindByName(absl::string_view reference) const {
  RK_ASSIGN_OR_RETURN(Catalog::Txn txn, catalog_->Read());
  RK_ASSIGN_OR_RETURN(std::optional<ImageRecord> record, txn.FindReference(reference));
  if (!record) {
    // Another node may have committed it a moment ago.
    RK_ASSIGN_OR_RETURN(Catalog::Txn now, catalog_->ReadNow());
    RK_ASSIGN_OR_RETURN(record, now.FindReference(reference));
  }
  if (!record) return std::nullopt;
  return std::move(record->info);
}

}  // namespace rekindle::store
