// What functions are deployed on this node, with copies of their code. It outlives the daemon, however that
// ends.
//
// In STORE/functions, which others may enter but not list:
//   NAME/function.json        the present revision, a v1::FunctionRecord as JSON; root's
//   NAME/REVISION/code        its code, which the owner may read (sealed_folder.h). Older versions had
//                             copies of layers beside it, in layers/0, layers/1, ...
//   .layers                   see layer_store.h
// The record is written last, and makes the revision the present one. Everything else that is found at a
// start, such as revisions of which no record tells, .deploying-* and .removed-*, is what an interrupted
// deployment or removal has left, and goes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/file_rights.h"
#include "base/unique_fd.h"
#include "functions/code_ledger.h"
#include "functions/function_spec.h"
#include "functions/layer_store.h"

namespace rekindle::functions {

// The code of one revision on disk. Once the revision has been replaced or removed, the folder goes with the
// last pointer to this: whoever runs an instance of it keeps one. Thread-safe.
class RevisionFolder {
 public:
  // `charge`: of what the code takes, until the folder has gone.
  explicit RevisionFolder(std::string path, std::vector<LayerPtr> layers = {},
                          std::unique_ptr<CodeLedger::Charge> charge = nullptr)
      : path_(std::move(path)), layers_(std::move(layers)), charge_(std::move(charge)) {}
  ~RevisionFolder();
  RevisionFolder(const RevisionFolder&) = delete;
  RevisionFolder& operator=(const RevisionFolder&) = delete;

  std::string code() const { return path_ + "/code"; }
  std::string layer(size_t number) const {
    return layers_.empty() ? path_ + "/layers/" + std::to_string(number) : layers_[number]->path();
  }
  // Empty where the revision has copies of its own, or none at all.
  const std::vector<LayerPtr>& layers() const { return layers_; }
  const std::string& path() const { return path_; }

 private:
  friend class FunctionCatalog;
  const std::string path_;
  const std::vector<LayerPtr> layers_;
  const std::unique_ptr<CodeLedger::Charge> charge_;
  mutable std::atomic<bool> unwanted_{false};
};

// References of images, empty where there are none.
struct FunctionImages {
  std::string dependency_image;
  std::string function_image;
  std::vector<std::string> dependencies;    // modules that the dependency image was chosen for
  std::vector<std::string> of_layers = {};  // of these: what comes from layers
  // Not among these: what comes from layers, and could not be loaded ahead, for a reason that may pass.
  std::vector<std::string> not_loaded = {};
  std::string load_failure = {};  // why the handler could not be loaded when that was tried last; UTF-8

  friend bool operator==(const FunctionImages&, const FunctionImages&) = default;
};

struct FunctionRecord {
  FunctionSpec spec;
  Owner owner;
  uint64_t revision = 0;
  std::string code_sha256;          // hexadecimal; over code and layers
  uint64_t code_bytes = 0;          // with layers
  uint64_t own_code_bytes = 0;      // without those that other functions may have, too; 0: not known
  std::vector<std::string> layers;  // their digests; empty: it has none, or copies of its own
  int64_t deployed_unix_ns = 0;
  FunctionImages images;
  std::shared_ptr<const RevisionFolder> folder;  // null: there is trouble
  // Why the entry can't be used; then only the name and the owner count. DataLoss: it is damaged;
  // FailedPrecondition: a newer version has deployed it; any other error: it can't be read now.
  absl::Status trouble;

  const std::string& name() const { return spec.name; }
  // Of code_bytes what it does not share with other functions.
  uint64_t own_bytes() const;
};

// What is copied from the folders that a spec names, in place of what a revision there is has.
struct NewParts {
  bool code = false;
  bool layers = false;
  bool venv = false;
};

struct DeployOptions {
  bool replace = false;  // a function of that name and owner which is there
  std::string python;    // the version that its runtime has ("3.11"); empty: it is not Python
  // With `replace`: the code and layers of this revision are deployed with other settings, whatever lies in
  // the folders that the spec names. Aborted: it, or its settings, are not the present ones any more.
  std::optional<FunctionRecord> code_of;
  NewParts new_parts;                            // with `code_of`: but these
  std::function<void(uint64_t bytes)> progress;  // copied so far; called on any thread
  // Whether there is room for so much code, or more than that (`all` false: it is being copied), which is in
  // the ledger by then. Asked first of all, now and then, and when all is there; with the owner's rights over
  // files.
  std::function<absl::Status(uint64_t bytes, bool all)> may_take;
  const std::atomic<bool>* cancelled = nullptr;  // ends it with Cancelled, until the record is written
  PrepareLayer prepare_layer;
  // Called when the code of a new revision lies in its folder, before anything makes it the present one:
  // finds its images. May take long; other calls may deploy or remove the function meanwhile.
  std::function<absl::Status(const FunctionRecord& staged, FunctionImages* images)> prepare;
};

struct Deployed {
  FunctionRecord record;
  bool unchanged = false;  // the same code and settings were there: nothing was done
  // The same code was there, and of the settings only those are other ones that its instances need not be
  // started anew for (OnlyAdjusts): it is the same revision, which was not prepared.
  bool adjusted = false;
};

// Whether of two different specs of the same code `next` has only another time-out, another number of
// instances, if it has provisioned ones as before, or another description.
bool OnlyAdjusts(const FunctionSpec& present, const FunctionSpec& next);

// Thread-safe. One process at a time has the catalog of a store.
class FunctionCatalog {
 public:
  struct Options {
    std::string store;
    uint64_t most_code_bytes = uint64_t{10} << 30;  // code and layers of one function
    // Called before each step on disk, with its name: for tests, which end the process there.
    std::function<void(absl::string_view step)> at_step;
  };

  // Reads what there is and removes what an interrupted deployment or removal has left. Entries that can't be
  // read are logged and listed with their trouble. Unavailable: another process has it.
  static absl::StatusOr<std::unique_ptr<FunctionCatalog>> Open(Options options);

  // Takes a copy of the code with the owner's rights, prepares it, then makes it the function's present
  // revision, all at once; if that fails at any point, or the process ends, what was there before stays.
  // AlreadyExists, without `replace`; PermissionDenied: it is another owner's, or the owner may not read the
  // code; Aborted: it is being deployed or removed by another call, or was meanwhile; the trouble of an entry
  // that is not damaged, but of a newer version, or can't be read now.
  absl::StatusOr<Deployed> Deploy(const FunctionSpec& spec, const Owner& owner, const DeployOptions& options)
      ABSL_LOCKS_EXCLUDED(commit_mutex_, mutex_);

  // NotFound, or its trouble.
  absl::StatusOr<FunctionRecord> Find(absl::string_view name) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<FunctionRecord> List() const ABSL_LOCKS_EXCLUDED(mutex_);  // those in trouble too; by name

  // Reads those again that could not be read, and returns the ones that are in order now. By one thread.
  std::vector<FunctionRecord> ReadAgain() ABSL_LOCKS_EXCLUDED(mutex_);

  // Damaged ones too, no others in trouble. Code of which instances run stays until they end. Unavailable:
  // the store is away, or another one.
  absl::Status Remove(const std::string& name) ABSL_LOCKS_EXCLUDED(commit_mutex_, mutex_);

  LayerStore& layers() { return layers_; }
  // Without layers.
  const std::shared_ptr<CodeLedger>& ledger() const { return ledger_; }

  // Is what lies in the store now what this knows of? Not where that is away, or another one is in its place,
  // of whose functions and layers nobody here knows which are of use.
  bool HasItsFolder() ABSL_LOCKS_EXCLUDED(commit_mutex_, mutex_);

  // `change` is given what is noted of this revision's images, which nobody else changes meanwhile, and
  // returns whether that is to be noted as it has left it; it must not call the catalog. Returns the record
  // as it is then. Aborted: that revision is not the present one any more. Unavailable: the store is away, or
  // another one.
  absl::StatusOr<FunctionRecord> ChangeImages(const std::string& name, uint64_t revision,
                                              const std::function<bool(FunctionImages*)>& change)
      ABSL_LOCKS_EXCLUDED(commit_mutex_, mutex_);

 private:
  class Claim;
  explicit FunctionCatalog(Options options);
  // Has this process have the folder, which is made if need be.
  absl::Status TakeFolder() ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_mutex_);
  // The same if it is another one than it was: the store was emptied, or put back. Unavailable: it has
  // functions that are not known.
  absl::Status FollowFolder() ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, but a folder that is away is not made: for what changes entries that are known.
  absl::Status CheckFolder() ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Load();
  absl::StatusOr<FunctionRecord> LoadEntry(const std::string& name);
  // What is known of an entry that can't be loaded.
  FunctionRecord InTrouble(const std::string& name, absl::Status why) const;
  absl::Status MakeWay() const;
  absl::Status CheckReachable(const std::string& folder, const Owner& owner) const;
  absl::Status CopyCode(const FunctionSpec& spec, const Owner& owner, const DeployOptions& options,
                        const std::string& staging, FunctionRecord* record, std::vector<LayerPtr>* layers,
                        CodeLedger::Charge& charge);
  absl::StatusOr<FunctionRecord> Present(const FunctionSpec& spec, const Owner& owner, bool replace) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Deployed> Stage(const FunctionSpec& spec, const Owner& owner, const DeployOptions& options,
                                 FunctionRecord* present) ABSL_LOCKS_EXCLUDED(commit_mutex_, mutex_);
  absl::Status Place(const std::string& staging, uint64_t present, std::vector<LayerPtr> layers,
                     std::unique_ptr<CodeLedger::Charge> charge, FunctionRecord* record)
      ABSL_LOCKS_EXCLUDED(commit_mutex_, mutex_);
  // Aborted: there is another revision (0: none) by now or, where `settings_of` is not null, one with other
  // settings than these.
  absl::Status CheckPresent(const std::string& name, uint64_t revision, const FunctionSpec* settings_of) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(commit_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);
  // In place of that revision.
  absl::Status Commit(const FunctionRecord& record, uint64_t replaced, const FunctionSpec* settings_of)
      ABSL_LOCKS_EXCLUDED(commit_mutex_, mutex_);
  // Gives the revision that is there other settings.
  absl::Status CommitSettings(const FunctionSpec* settings_of, FunctionRecord* record)
      ABSL_LOCKS_EXCLUDED(commit_mutex_, mutex_);
  void Step(absl::string_view name) const {
    if (options_.at_step) options_.at_step(name);
  }
  std::string FolderOf(absl::string_view name) const;

  const Options options_;
  const std::string directory_;
  const std::shared_ptr<CodeLedger> ledger_ = std::make_shared<CodeLedger>();
  LayerStore layers_;
  // Taken before mutex_ and held over writes, which wait for the disk.
  absl::Mutex commit_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  UniqueFd lock_ ABSL_GUARDED_BY(commit_mutex_);
  mutable absl::Mutex mutex_;
  std::map<std::string, FunctionRecord, std::less<>> records_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> claimed_ ABSL_GUARDED_BY(mutex_);
  // Of removed functions: what still belongs to one must not be taken for a later one's of the same name.
  std::map<std::string, uint64_t, std::less<>> last_revisions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rekindle::functions
