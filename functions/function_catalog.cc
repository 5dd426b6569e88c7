#include "functions/function_catalog.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/log.h"
#include "base/permission_bits.h"
#include "base/record_file.h"
#include "base/status.h"
#include "functions/code_copy.h"
#include "functions/function_record_file.h"
#include "functions/sealed_folder.h"
#include "functions/service_folders.h"

namespace rekindle::functions {
namespace {

// Where it lies it is gone at once, also when a crash interrupts the removal. `path` is
// STORE/functions/NAME/REVISION or STORE/functions/NAME.
absl::Status Discard(const std::string& functions, const std::string& path) {
  RK_ASSIGN_OR_RETURN(TemporaryDirectory removed, TemporaryDirectory::Make(functions, kRemovedPrefix));
  const std::string target = removed.path() + "/contents";
  if (::rename(path.c_str(), target.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, absl::StrCat("removing ", path));
  }
  return RemoveTree(target);
}

// Revisions are folders named by a number.
bool IsRevision(const std::string& name, uint64_t* number) {
  return absl::SimpleAtoi(name, number) && absl::StrCat(*number) == name;
}

uint64_t NextRevision(const std::string& folder, uint64_t present) {
  uint64_t next = present + 1, number = 0;
  auto names = ListDirectory(folder);
  if (!names.ok()) return next;
  // Those of earlier revisions whose instances still run.
  for (const std::string& name : *names) {
    if (IsRevision(name, &number)) next = std::max(next, number + 1);
  }
  return next;
}

// So that it is not the first caller who finds out.
absl::Status CheckBootstrap(const FunctionSpec& spec, const std::string& staging) {
  if (spec.runtime.kind != RuntimeKind::kProvided) return absl::OkStatus();
  struct stat info;
  const bool there = ::stat(absl::StrCat(staging, "/code/bootstrap").c_str(), &info) == 0;
  if (there && S_ISREG(info.st_mode) && (info.st_mode & 0111) != 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "runtime ", spec.runtime.Name(), " starts the program 'bootstrap' of the code folder, and in ",
      spec.code, there ? " that is no program: make it one (chmod +x)" : " there is none: put it there"));
}

bool MayPass(const absl::Status& trouble) {
  return !trouble.ok() && !absl::IsDataLoss(trouble) && !absl::IsFailedPrecondition(trouble);
}

// Nobody can use what is damaged any more; what a newer version has deployed is that one's.
bool MayGo(const absl::Status& trouble) { return trouble.ok() || absl::IsDataLoss(trouble); }

// In words for who asks for it.
absl::Status TroubleOf(const FunctionRecord& record) {
  const absl::string_view why = record.trouble.message();
  if (absl::IsDataLoss(record.trouble)) {
    return absl::DataLossError(absl::StrCat("function ", record.name(), " is damaged: ", why,
                                            ": deploy it again with --replace, or remove it (rekindle fn rm ",
                                            record.name(), ")"));
  }
  if (absl::IsFailedPrecondition(record.trouble)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "function ", record.name(), " is neither run, replaced nor removed by this version: ", why));
  }
  return absl::UnavailableError(
      absl::StrCat("function ", record.name(), " can't be read now, which is tried again soon: ", why));
}

}  // namespace

bool OnlyAdjusts(const FunctionSpec& present, const FunctionSpec& next) {
  FunctionSpec adjusted = present;
  adjusted.timeout_ms = next.timeout_ms;
  adjusted.provisioned = next.provisioned;
  adjusted.max_instances = next.max_instances;
  adjusted.description = next.description;
  // Instances are told which of the two they are.
  return adjusted == next && (present.provisioned > 0) == (next.provisioned > 0);
}

namespace {

Deployed Adjusted(const FunctionRecord& present, const FunctionSpec& spec) {
  Deployed adjusted{present, false, /*adjusted=*/true};
  adjusted.record.spec = spec;
  adjusted.record.deployed_unix_ns = UnixNanos();
  return adjusted;
}

}  // namespace

uint64_t FunctionRecord::own_bytes() const {
  if (own_code_bytes != 0) return own_code_bytes;
  uint64_t bytes = code_bytes;
  if (folder == nullptr) return bytes;
  for (const LayerPtr& layer : folder->layers()) bytes -= std::min(bytes, layer->bytes());
  return bytes;
}

RevisionFolder::~RevisionFolder() {
  if (!unwanted_.load()) return;
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  if (absl::Status status = Discard(folder.parent_path().string(), path_); !status.ok()) {
    Log(LogLevel::kWarning, absl::StrCat(status.message(), ": it is tried again at the next start"));
  }
  // Fails while there are other revisions or a record.
  ::rmdir(folder.c_str());
}

// The right to change a function's entry, for as long as it lives.
class FunctionCatalog::Claim {
 public:
  static absl::StatusOr<Claim> Take(FunctionCatalog& catalog, const std::string& name) {
    absl::MutexLock lock(&catalog.mutex_);
    if (!catalog.claimed_.insert(name).second) {
      return absl::AbortedError(
          absl::StrCat("function ", name,
                       " is being deployed or removed by another call: try again when that is "
                       "done"));
    }
    return Claim(catalog, name);
  }
  Claim(Claim&& other) noexcept
      : catalog_(std::exchange(other.catalog_, nullptr)), name_(std::move(other.name_)) {}
  Claim& operator=(Claim&&) = delete;
  ~Claim() {
    if (!catalog_) return;
    absl::MutexLock lock(&catalog_->mutex_);
    catalog_->claimed_.erase(name_);
  }

 private:
  Claim(FunctionCatalog& catalog, std::string name) : catalog_(&catalog), name_(std::move(name)) {}
  FunctionCatalog* catalog_;
  std::string name_;
};

FunctionCatalog::FunctionCatalog(Options options)
    : options_(std::move(options)), directory_(FunctionsDirectory(options_.store)), layers_(directory_) {}

std::string FunctionCatalog::FolderOf(absl::string_view name) const {
  return absl::StrCat(directory_, "/", name);
}

absl::StatusOr<std::unique_ptr<FunctionCatalog>> FunctionCatalog::Open(Options options) {
  std::unique_ptr<FunctionCatalog> catalog(new FunctionCatalog(std::move(options)));
  {
    absl::MutexLock commit(&catalog->commit_mutex_);
    RK_RETURN_IF_ERROR(Annotate(catalog->TakeFolder(), "opening the catalog of functions"));
  }
  RK_RETURN_IF_ERROR(catalog->Load());
  return catalog;
}

absl::Status FunctionCatalog::TakeFolder() {
  RK_RETURN_IF_ERROR(MakeFolder(directory_, kThroughOnly));
  RK_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(directory_ + "/.lock", O_RDWR | O_CREAT));
  // This process's own: not a child's that it leaves behind.
  struct flock whole {};
  whole.l_type = F_WRLCK;
  if (::fcntl(file.get(), F_SETLK, &whole) != 0) {
    if (errno != EAGAIN && errno != EACCES) return ErrnoStatus(errno, absl::StrCat("locking ", directory_));
    return absl::UnavailableError(absl::StrCat("the functions in ", directory_,
                                               " are another daemon's: end that, or name another --store"));
  }
  lock_ = std::move(file);
  return absl::OkStatus();
}

bool FunctionCatalog::HasItsFolder() {
  absl::MutexLock commit(&commit_mutex_);
  return CheckFolder().ok();
}

absl::Status FunctionCatalog::CheckFolder() {
  if (PathExists(directory_)) return FollowFolder();
  if (!PathExists(options_.store)) {
    return absl::UnavailableError(
        absl::StrCat("the store at ", options_.store, " is not there: is its file system mounted?"));
  }
  return absl::UnavailableError(absl::StrCat(
      "the store at ", options_.store,
      " has lost its functions: is its file system mounted? If it was emptied, deploy them again"));
}

absl::Status FunctionCatalog::FollowFolder() {
  if (IsFileAt(lock_, directory_ + "/.lock")) return absl::OkStatus();
  auto names = ListDirectory(directory_);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    auto record = ReadFunctionRecord(absl::StrCat(FolderOf(name), "/", kRecordFile));
    if (absl::IsNotFound(record.status()) || !CheckFunctionName(name).ok()) continue;
    absl::MutexLock lock(&mutex_);
    auto known = records_.find(name);
    if (record.ok() && known != records_.end() && known->second.revision == record->revision &&
        known->second.code_sha256 == record->code_sha256) {
      continue;
    }
    return absl::UnavailableError(
        absl::StrCat("the store at ", options_.store,
                     " is another one than when the daemon began, and has functions of its "
                     "own, such as '",
                     name, "': start the daemon anew"));
  }
  return TakeFolder();
}

absl::Status FunctionCatalog::Load() {
  layers_.SealAll();
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(directory_));
  absl::MutexLock lock(&mutex_);
  for (const std::string& name : names) {
    if (absl::StartsWith(name, kStagingPrefix) || absl::StartsWith(name, kRemovedPrefix)) {
      if (absl::Status status = RemoveTree(FolderOf(name)); !status.ok()) {
        Log(LogLevel::kWarning, absl::StrCat("what an interrupted deployment left: ", status.message()));
      }
      continue;
    }
    if (!CheckFunctionName(name).ok()) continue;  // .lock, lost+found
    absl::StatusOr<FunctionRecord> record = LoadEntry(name);
    if (absl::IsNotFound(record.status())) {
      Log(LogLevel::kInfo,
          absl::StrCat("the first deployment of function ", name, " was interrupted: removing it"));
      if (absl::Status status = Discard(directory_, FolderOf(name)); !status.ok()) {
        Log(LogLevel::kWarning, status.message());
      }
      continue;
    }
    if (!record.ok()) record = InTrouble(name, record.status());
    records_.emplace(name, *std::move(record));
  }
  if (records_.empty()) return absl::OkStatus();
  return MakeWay();
}

FunctionRecord FunctionCatalog::InTrouble(const std::string& name, absl::Status why) const {
  FunctionRecord record;
  record.spec.name = name;
  record.trouble = std::move(why);
  Log(LogLevel::kError, TroubleOf(record).message());
  // Whose it is tells the folder of a revision.
  auto entries = ListDirectory(FolderOf(name));
  uint64_t number = 0;
  for (const std::string& entry : entries.ok() ? *entries : std::vector<std::string>()) {
    if (!IsRevision(entry, &number)) continue;
    if (const auto reader = ReaderOf(absl::StrCat(FolderOf(name), "/", entry)); reader.ok())
      record.owner = {*reader, 0, {}};
  }
  return record;
}

std::vector<FunctionRecord> FunctionCatalog::ReadAgain() {
  std::vector<FunctionRecord> read;
  for (const FunctionRecord& before : List()) {
    if (!MayPass(before.trouble)) continue;
    // Without the lock, which all calls of functions need: the disk may take its time. Nobody replaces or
    // removes what can't be read.
    absl::StatusOr<FunctionRecord> again = LoadEntry(before.name());
    if (!again.ok() && again.status() == before.trouble) continue;
    FunctionRecord now = again.ok() ? *std::move(again) : InTrouble(before.name(), again.status());
    if (now.trouble.ok()) read.push_back(now);
    absl::MutexLock lock(&mutex_);
    records_[before.name()] = std::move(now);
  }
  return read;
}

absl::StatusOr<FunctionRecord> FunctionCatalog::LoadEntry(const std::string& name) {
  const std::string folder = FolderOf(name);
  RemoveAbandonedRecords(folder);
  RK_ASSIGN_OR_RETURN(FunctionRecord record, ReadFunctionRecord(absl::StrCat(folder, "/", kRecordFile)));
  if (record.spec.name != name) {
    return absl::DataLossError(absl::StrCat(folder, " holds the record of ", record.spec.name));
  }
  const std::string revision = absl::StrCat(record.revision);
  std::vector<LayerPtr> layers;
  for (const std::string& digest : record.layers) {
    absl::StatusOr<LayerPtr> layer = layers_.Find({record.owner.uid, digest});
    if (absl::IsNotFound(layer.status())) return absl::DataLossError(layer.status().message());
    RK_RETURN_IF_ERROR(layer.status());
    layers.push_back(*std::move(layer));
  }
  std::unique_ptr<CodeLedger::Charge> charge = ledger_->Begin(record.owner.uid);
  CodeLedger::Charge& charged = *charge;
  record.folder = std::make_shared<RevisionFolder>(absl::StrCat(folder, "/", revision), std::move(layers),
                                                   std::move(charge));
  charged.Set(record.own_bytes());
  const size_t copied = record.layers.empty() ? record.spec.LayerFolders().size() : 0;
  for (size_t i = 0; i <= copied; ++i) {
    const std::string part = i == 0 ? record.folder->code() : record.folder->layer(i - 1);
    struct stat info;
    if (::lstat(part.c_str(), &info) == 0) continue;
    if (errno == ENOENT || errno == ENOTDIR) return absl::DataLossError(absl::StrCat(part, " is missing"));
    return ErrnoStatus(errno, absl::StrCat("looking at ", part));
  }
  if (!IsSealed(record.folder->path(), record.owner)) {  // an older version's
    if (const absl::Status sealed = SealFolder(record.folder->path(), record.owner); !sealed.ok())
      Log(LogLevel::kWarning,
          absl::StrCat("function ", name, ": its owner can change its code: ", sealed.message()));
  }
  RK_ASSIGN_OR_RETURN(std::vector<std::string> entries, ListDirectory(folder));
  for (const std::string& entry : entries) {
    if (entry == revision || entry == kRecordFile) continue;
    if (absl::Status status = Discard(directory_, absl::StrCat(folder, "/", entry)); !status.ok()) {
      Log(LogLevel::kWarning, status.message());
    }
  }
  return record;
}

// Functions run as their owners and must reach their code, which lies in the store. Everything else in it is
// closed by its own permissions, which are looked at before the way is opened.
absl::Status FunctionCatalog::MakeWay() const {
  struct stat info;
  if (::stat(options_.store.c_str(), &info) != 0)
    return ErrnoStatus(errno, absl::StrCat("reading ", options_.store));
  if ((info.st_mode & 0011) == 0011) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(options_.store));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(options_.store, "/", name);
    if (name == "functions" || ::lstat(path.c_str(), &info) != 0 || S_ISLNK(info.st_mode)) continue;
    if ((info.st_mode & 0077) != 0 && ::chmod(path.c_str(), info.st_mode & 07700) != 0) {
      return ErrnoStatus(errno, absl::StrCat("closing ", path, " to other users"));
    }
  }
  if (::stat(options_.store.c_str(), &info) != 0 ||
      ::chmod(options_.store.c_str(), (info.st_mode & kPermissionBits) | 0011) != 0) {
    return ErrnoStatus(errno, absl::StrCat("opening the way to functions' code through ", options_.store));
  }
  return absl::OkStatus();
}

// The folders above the store are not ours to open.
absl::Status FunctionCatalog::CheckReachable(const std::string& folder, const Owner& owner) const {
  return WithFileRightsOf(owner, [&]() -> absl::Status {
    std::string way;
    for (const std::filesystem::path& part : std::filesystem::path(folder)) {
      way = way.empty() ? part.string() : (std::filesystem::path(way) / part).string();
      UniqueFd reached(::open(way.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      if (reached.valid()) continue;
      if (errno != EACCES) return ErrnoStatus(errno, absl::StrCat("reaching ", way, " as user ", owner.uid));
      const std::string closed = std::filesystem::path(way).parent_path().string();
      return absl::FailedPreconditionError(absl::StrCat(
          "user ", owner.uid, " can't enter ", closed, ", so functions could not reach their code in ",
          options_.store, ": chmod o+x ", closed, ", or give rekindled another --store"));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<FunctionRecord> FunctionCatalog::Present(const FunctionSpec& spec, const Owner& owner,
                                                        bool replace) const {
  absl::MutexLock lock(&mutex_);
  auto found = records_.find(spec.name);
  if (found == records_.end()) return FunctionRecord();
  if (!MayGo(found->second.trouble)) return TroubleOf(found->second);
  if (found->second.owner.uid != owner.uid) {
    return absl::PermissionDeniedError(
        absl::StrCat("function ", spec.name, " is another user's: choose another name"));
  }
  if (!replace) {
    return absl::AlreadyExistsError(absl::StrCat(
        "function ", spec.name, " is deployed already: replace it with --replace, or choose another name"));
  }
  return found->second;
}

absl::Status FunctionCatalog::CopyCode(const FunctionSpec& spec, const Owner& owner,
                                       const DeployOptions& options, const std::string& staging,
                                       FunctionRecord* record, std::vector<LayerPtr>* layers,
                                       CodeLedger::Charge& charge) {
  CodeCopyOptions limits;
  limits.most_bytes = options_.most_code_bytes;
  limits.cancelled = options.cancelled;
  uint64_t taken = 0;  // that was not there before
  if (options.may_take) {
    RK_RETURN_IF_ERROR(options.may_take(0, /*all=*/false));
    limits.may_take = [&](uint64_t bytes) {
      charge.Set(taken + bytes);
      return options.may_take(taken + bytes, /*all=*/false);
    };
  }
  if (options.progress) limits.progress = [&](uint64_t bytes) { options.progress(taken + bytes); };
  const RevisionFolder* const present = options.code_of ? options.code_of->folder.get() : nullptr;
  // What is staged is the service's, and nobody else's to enter.
  RK_ASSIGN_OR_RETURN(const UniqueFd code, MakeFolderFor(absl::StrCat(staging, "/code"), owner));
  const absl::Status copied = WithFileRightsOf(owner, [&]() -> absl::Status {
    CodeCopier copier(limits);
    RK_RETURN_IF_ERROR(
        copier.Copy(present && !options.new_parts.code ? present->code() : spec.code, code.get()));
    record->code_bytes = copier.bytes();
    limits.entries_before = copier.entries();
    record->code_sha256 = copier.Digest();
    return absl::OkStatus();
  });
  RK_RETURN_IF_ERROR(copied);
  RK_RETURN_IF_ERROR(SealOrGive(staging, owner));
  record->own_code_bytes = taken = record->code_bytes;
  std::map<std::string, uint64_t> before;
  for (const auto& [key, bytes] : layers_.Sizes()) {
    if (key.first == owner.uid) before[key.second] = bytes;
  }
  const std::vector<std::string> folders = spec.LayerFolders();
  for (size_t i = 0; i < folders.size(); ++i) {
    const bool is_venv = i >= spec.layers.size();
    const bool stays = present != nullptr && !(is_venv ? options.new_parts.venv : options.new_parts.layers);
    const size_t was = is_venv && stays ? options.code_of->spec.layers.size() : i;  // where it stays
    LayerFolder folder{stays ? present->layer(was) : "", "", ""};
    limits.bytes_before = record->code_bytes;
    LayerPtr layer;
    if (stays && !present->layers().empty()) {
      layer = present->layers()[was];
    } else {
      if (!stays) {
        const absl::Status found = WithFileRightsOf(owner, [&]() -> absl::Status {
          RK_ASSIGN_OR_RETURN(folder, FindLayerFolder(folders[i], spec.runtime, options.python, is_venv));
          return absl::OkStatus();
        });
        RK_RETURN_IF_ERROR(found);
      }
      RK_ASSIGN_OR_RETURN(layer, layers_.Bring(folder, owner, limits, options.prepare_layer));
    }
    if (before.emplace(layer->digest(), layer->bytes()).second) taken += layer->bytes();
    record->code_bytes += layer->bytes();
    record->layers.push_back(layer->digest());
    layers->push_back(std::move(layer));
  }
  if (record->code_bytes > options_.most_code_bytes) {
    return absl::OutOfRangeError(absl::StrCat("code and layers have over ",
                                              FormatBytes(options_.most_code_bytes),
                                              ", the limit: leave out what the function does not need"));
  }
  if (!layers->empty()) {
    CodeCopier all({});
    all.AddToDigest(record->code_sha256);
    for (const std::string& digest : record->layers) all.AddToDigest(digest);
    record->code_sha256 = all.Digest();
  }
  charge.Set(taken);
  if (options.may_take) RK_RETURN_IF_ERROR(options.may_take(taken, /*all=*/true));
  charge.Set(record->own_code_bytes);  // layers count by themselves
  return absl::OkStatus();
}

absl::StatusOr<Deployed> FunctionCatalog::Deploy(const FunctionSpec& spec, const Owner& owner,
                                                 const DeployOptions& options) {
  const std::string what = absl::StrCat("deploying function ", spec.name);
  FunctionRecord present;
  RK_ASSIGN_OR_RETURN(Deployed deployed, Stage(spec, owner, options, &present));
  if (deployed.unchanged) return deployed;
  // One that was given whole counts as it is, whatever it replaces.
  const FunctionSpec* const settings_of = options.code_of ? &present.spec : nullptr;
  if (deployed.adjusted) {
    RK_RETURN_IF_ERROR(Annotate(CommitSettings(settings_of, &deployed.record), what));
    return deployed;
  }
  if (options.prepare)
    RK_RETURN_IF_ERROR(Annotate(options.prepare(deployed.record, &deployed.record.images), what));
  if (options.cancelled && *options.cancelled) return absl::CancelledError(absl::StrCat(what, ": cancelled"));
  RK_RETURN_IF_ERROR(Annotate(Commit(deployed.record, present.revision, settings_of), what));
  return deployed;
}

absl::StatusOr<Deployed> FunctionCatalog::Stage(const FunctionSpec& spec, const Owner& owner,
                                                const DeployOptions& options, FunctionRecord* present) {
  const std::string what = absl::StrCat("deploying function ", spec.name);
  RK_RETURN_IF_ERROR(Annotate(CheckFunctionName(spec.name), what));
  RK_ASSIGN_OR_RETURN(Claim claim, Claim::Take(*this, spec.name));
  RK_ASSIGN_OR_RETURN(*present, Present(spec, owner, options.replace));
  {
    absl::MutexLock commit(&commit_mutex_);
    RK_RETURN_IF_ERROR(Annotate(FollowFolder(), what));
  }
  if (options.code_of) {
    if (present->folder == nullptr || present->folder != options.code_of->folder ||
        !(present->spec == options.code_of->spec)) {
      return absl::AbortedError(absl::StrCat(
          "function ", spec.name,
          " was deployed again, changed or removed meanwhile: nothing was done; look at it, and try again"));
    }
    const bool copies = options.new_parts.code || options.new_parts.layers || options.new_parts.venv;
    if (!copies && present->spec == spec) return Deployed{*present, true};
    if (!copies && OnlyAdjusts(present->spec, spec)) return Adjusted(*present, spec);
  }
  RK_RETURN_IF_ERROR(Annotate(MakeWay(), what));
  if (absl::Status status = CheckReachable(directory_, owner); !status.ok()) return Annotate(status, what);

  Step("stage");
  absl::StatusOr<TemporaryDirectory> staging = TemporaryDirectory::Make(directory_, kStagingPrefix);
  if (!staging.ok()) return Annotate(staging.status(), what);
  Deployed deployed;
  deployed.record.spec = spec;
  deployed.record.owner = owner;
  std::vector<LayerPtr> layers;
  std::unique_ptr<CodeLedger::Charge> charge = ledger_->Begin(owner.uid);
  RK_RETURN_IF_ERROR(
      Annotate(CopyCode(spec, owner, options, staging->path(), &deployed.record, &layers, *charge), what));
  RK_RETURN_IF_ERROR(Annotate(CheckBootstrap(spec, staging->path()), what));

  FunctionSpec same_places = present->spec;
  same_places.code = spec.code;
  same_places.layers = spec.layers;
  same_places.venv = spec.venv;
  const bool same_code = present->folder && present->code_sha256 == deployed.record.code_sha256 &&
                         PathExists(present->folder->code());
  if (same_code && same_places == spec) return Deployed{*present, true};
  deployed.record.deployed_unix_ns = UnixNanos();
  if (same_code && OnlyAdjusts(same_places, spec)) return Adjusted(*present, spec);
  RK_RETURN_IF_ERROR(Annotate(
      Place(staging->path(), present->revision, std::move(layers), std::move(charge), &deployed.record),
      what));
  staging->Release();
  return deployed;
}

// As a revision that goes again with the last pointer to its folder, unless it is committed before.
absl::Status FunctionCatalog::Place(const std::string& staging, uint64_t present,
                                    std::vector<LayerPtr> layers, std::unique_ptr<CodeLedger::Charge> charge,
                                    FunctionRecord* record) {
  const std::string folder = FolderOf(record->name());
  Step("sync");
  RK_ASSIGN_OR_RETURN(UniqueFd staged, OpenFile(staging, O_RDONLY | O_DIRECTORY));
  if (::syncfs(staged.get()) != 0) return ErrnoStatus(errno, absl::StrCat("syncing ", staging));

  // With the lock: another deployment of the function must not choose the same number.
  absl::MutexLock commit(&commit_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    auto last = last_revisions_.find(record->name());
    record->revision =
        NextRevision(folder, std::max(present, last == last_revisions_.end() ? 0 : last->second));
  }
  Step("place");
  const std::string path = absl::StrCat(folder, "/", record->revision);
  // The folder of an old revision may take the function's with it in between, when it was the last.
  for (int left = 10;; --left) {
    RK_RETURN_IF_ERROR(MakeFolder(folder, kThroughOnly));
    if (::rename(staging.c_str(), path.c_str()) == 0) break;
    if (errno != ENOENT || left == 0) return ErrnoStatus(errno, absl::StrCat("moving the code to ", path));
  }
  auto revision = std::make_shared<RevisionFolder>(path, std::move(layers), std::move(charge));
  revision->unwanted_ = true;
  record->folder = std::move(revision);
  return SyncFolder(directory_);
}

absl::Status FunctionCatalog::CheckPresent(const std::string& name, uint64_t revision,
                                           const FunctionSpec* settings_of) const {
  absl::MutexLock lock(&mutex_);
  const auto present = records_.find(name);
  if ((present == records_.end() ? 0 : present->second.revision) != revision) {
    return absl::AbortedError(
        "it was deployed again, or removed, before this deployment had ended, which has no effect");
  }
  if (settings_of != nullptr && (revision == 0 || !(present->second.spec == *settings_of))) {
    return absl::AbortedError(
        "its settings were changed by another call before this one had ended, which has no effect: look at "
        "it, and try again");
  }
  return absl::OkStatus();
}

absl::Status FunctionCatalog::Commit(const FunctionRecord& record, uint64_t replaced,
                                     const FunctionSpec* settings_of) {
  std::shared_ptr<const RevisionFolder> old;  // goes after the locks have
  absl::MutexLock commit(&commit_mutex_);
  RK_RETURN_IF_ERROR(CheckPresent(record.name(), replaced, settings_of));
  // What was taken down as damaged has taken this with it.
  if (!PathExists(record.folder->code())) {
    return absl::AbortedError("it was removed before this deployment had ended, which has no effect");
  }
  Step("record");
  // So that no start takes the new revision for what was left by an interrupted deployment, once there is a
  // record.
  RK_RETURN_IF_ERROR(SyncFolder(FolderOf(record.name())));
  RK_RETURN_IF_ERROR(WriteFunctionRecord(absl::StrCat(FolderOf(record.name()), "/", kRecordFile), record));
  Step("retire");
  record.folder->unwanted_ = false;
  absl::MutexLock lock(&mutex_);
  old = std::exchange(records_[record.name()], record).folder;
  if (old) old->unwanted_ = true;
  return absl::OkStatus();
}

absl::Status FunctionCatalog::CommitSettings(const FunctionSpec* settings_of, FunctionRecord* record) {
  absl::MutexLock commit(&commit_mutex_);
  RK_RETURN_IF_ERROR(CheckPresent(record->name(), record->revision, settings_of));
  RK_ASSIGN_OR_RETURN(const FunctionRecord present, Find(record->name()));
  record->images = present.images;
  Step("record");
  RK_RETURN_IF_ERROR(WriteFunctionRecord(absl::StrCat(FolderOf(record->name()), "/", kRecordFile), *record));
  absl::MutexLock lock(&mutex_);
  records_[record->name()] = *record;
  return absl::OkStatus();
}

absl::StatusOr<FunctionRecord> FunctionCatalog::Find(absl::string_view name) const {
  absl::MutexLock lock(&mutex_);
  auto found = records_.find(name);
  if (found == records_.end()) {
    return absl::NotFoundError(
        absl::StrCat("there is no function ", name, ": rekindle fn ls shows which there are"));
  }
  if (!found->second.trouble.ok()) return TroubleOf(found->second);
  return found->second;
}

std::vector<FunctionRecord> FunctionCatalog::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<FunctionRecord> records;
  for (const auto& [name, record] : records_) records.push_back(record);
  return records;
}

absl::Status FunctionCatalog::Remove(const std::string& name) {
  RK_ASSIGN_OR_RETURN(Claim claim, Claim::Take(*this, name));
  FunctionRecord record;  // its folder goes after the locks have
  absl::MutexLock commit(&commit_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    auto found = records_.find(name);
    if (found == records_.end())
      return absl::NotFoundError(absl::StrCat("removing ", name, ": there is no such function"));
    if (!MayGo(found->second.trouble)) return TroubleOf(found->second);
    record = found->second;
  }
  RK_RETURN_IF_ERROR(Annotate(CheckFolder(), absl::StrCat("removing ", name)));
  const std::string folder = FolderOf(name);
  Step("forget");
  if (record.folder) {
    const std::string file = absl::StrCat(folder, "/", kRecordFile);
    if (::unlink(file.c_str()) != 0 && errno != ENOENT)
      return ErrnoStatus(errno, absl::StrCat("removing ", file));
    // The folder may have been removed with the store.
    if (const absl::Status synced = SyncFolder(folder); !synced.ok() && !absl::IsNotFound(synced))
      return synced;
    record.folder->unwanted_ = true;
  } else {
    RK_RETURN_IF_ERROR(Discard(directory_, folder));
  }
  Step("clear");
  absl::MutexLock lock(&mutex_);
  records_.erase(name);
  uint64_t& last = last_revisions_[name];
  last = std::max(last, record.revision);
  return absl::OkStatus();
}

absl::StatusOr<FunctionRecord> FunctionCatalog::ChangeImages(
    const std::string& name, uint64_t revision, const std::function<bool(FunctionImages*)>& change) {
  absl::MutexLock commit(&commit_mutex_);
  RK_ASSIGN_OR_RETURN(FunctionRecord record, Find(name));
  if (record.revision != revision) {
    return absl::AbortedError(absl::StrCat("function ", name, " has revision ", record.revision,
                                           " by now: images of revision ", revision, " are of no use"));
  }
  if (!change(&record.images)) return record;
  RK_RETURN_IF_ERROR(CheckFolder());
  RK_RETURN_IF_ERROR(WriteFunctionRecord(absl::StrCat(FolderOf(name), "/", kRecordFile), record));
  absl::MutexLock lock(&mutex_);
  records_[name] = record;
  return record;
}

}  // namespace rekindle::functions
