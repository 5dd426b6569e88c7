// A disk that fails at a chosen operation: a BlockIo for tests over real files, which remembers what a loss
// of power could take from them.
//
// What was written to a file since its last sync, and what happened to the names of a folder since its last
// sync, is on such a disk or is not, independently of each other and in any order. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "dedup_store/block_io.h"

namespace rekindle::store {

enum class Fault {
  // The store lives on, and further operations succeed.
  kError,               // any operation: nothing of it happens
  kShortWrite,          // a write: the first half of it happens
  kDelay,               // a write of a queue ends after all later ones; in the end the power goes
  kErrorThenPowerLoss,  // a change or sync; what it should have synced is lost for ever; in the end the power
                        // goes
  // From a change or sync on all operations fail. What is found afterwards:
  kKill,           // everything; the process died
  kTears,          // everything, and of a write that is the operation the first sectors
  kLosesAll,       // what was synced
  kLosesContents,  // names as they were last, contents as they were synced
  kLosesNames,     // the other way round
  kReorders,       // the later half of what was not synced
  kScatters,       // every second block and name of it
};
inline constexpr Fault kAllFaults[] = {
    Fault::kError,      Fault::kShortWrite, Fault::kDelay,    Fault::kErrorThenPowerLoss,
    Fault::kKill,       Fault::kTears,      Fault::kLosesAll, Fault::kLosesContents,
    Fault::kLosesNames, Fault::kReorders,   Fault::kScatters};
absl::string_view FaultName(Fault fault);
// Whether the program goes on after the fault, so that what it was told must be so afterwards.
bool LivesOn(Fault fault);
// Whether the files are the same ones after it as before, whatever is in them.
bool KeepsFiles(Fault fault);

class FaultyDisk : public BlockIo {
 public:
  // Of the operations to which `fault` applies, number `fail_at` (from 1) is hit.
  FaultyDisk(Fault fault, int fail_at) : fault_(fault), fail_at_(fail_at) {}

  // From now on only operations of the calling thread are counted and hit.
  void WatchThisThread();
  int operations() const;
  bool was_hit() const { return operations() >= fail_at_; }
  // When nobody uses the disk any more: makes of its files what is found when the power is back.
  void PowerUp();

  absl::StatusOr<std::unique_ptr<BlockFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<BlockFile>> CreateBuffered(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<BlockFile>> Open(const std::string& path, bool writable) override;
  absl::StatusOr<std::unique_ptr<BlockFile>> OpenUncached(const std::string& path) override {
    return Open(path, false);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Unlink(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status BeforeCatalogCommit(absl::string_view what) override;

 private:
  friend class FaultyFile;
  friend class FaultyQueue;

  enum class Kind { kOther, kChange, kSync, kWrite, kQueueWrite };
  struct Step {
    bool hit = false;
    absl::Status status;
  };
  struct Change {
    enum Type { kWrite, kZeros, kSize } type;
    uint64_t offset = 0;  // kSize: the size
    uint64_t length = 0;
    std::string bytes;  // kWrite
    uint64_t order = 0;
  };
  struct Inode {
    std::unique_ptr<BlockFile> view;    // of what the program sees
    std::optional<std::string> synced;  // unset: as the program sees it
    std::vector<Change> changes;        // since
    bool diverged = false;              // a sync failed: what the program sees is not what gets synced
  };
  using InodePtr = std::shared_ptr<Inode>;
  struct NameChange {
    std::string folder;
    std::string from, to;  // one may be empty
    InodePtr inode;
  };
  struct Piece {
    Inode* inode;
    Change change;
  };

  bool Applies(Kind kind) const;
  Step Take(Kind kind, absl::string_view what) ABSL_LOCKS_EXCLUDED(mutex_);
  Step TakeLocked(Kind kind, absl::string_view what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // How much of a write that is hit happens.
  size_t PartOf(const Step& step, uint64_t offset, size_t bytes) const;
  void Record(Inode& inode, Change change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SyncFile(Inode& inode, BlockFile& real) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<InodePtr> InodeAt(const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::unique_ptr<BlockFile>> Make(const std::string& path, bool direct);
  void RecordName(NameChange change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoseContents() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::map<std::string, InodePtr> NamesAfterLoss() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Fault fault_;
  const int fail_at_;
  mutable absl::Mutex mutex_;
  std::optional<std::thread::id> watched_ ABSL_GUARDED_BY(mutex_);
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  bool off_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, InodePtr> names_ ABSL_GUARDED_BY(mutex_);         // null: there is none
  std::map<std::string, InodePtr> synced_names_ ABSL_GUARDED_BY(mutex_);  // of those that ever changed
  std::vector<NameChange> name_changes_ ABSL_GUARDED_BY(mutex_);          // not synced
};

}  // namespace rekindle::store
