// The files of the catalog's log: finding, reading, appending to, and replacing them. The records mean
// nothing here. Not thread-safe; catalog.cc says who may call what when.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/block_io.h"
#include "dedup_store/catalog_log.h"

namespace rekindle::store {

// One generation of the log, opened.
struct OpenLog {
  uint64_t generation = 0;
  uint64_t nonce = 0;
  std::shared_ptr<BlockFile> copies[kLogCopies];  // null: there is no such file
  bool writable = false;
  uint64_t end = 0;       // of the last record
  uint64_t reserved = 0;  // disk space is taken up to here
};

// What the copies hold from some offset on.
struct LogBytes {
  std::shared_ptr<const std::string> copies[kLogCopies];  // empty where there is no file
  bool unreadable[kLogCopies] = {};                       // the disk refused a part, which reads as zeros
};

struct LoadedLog {
  OpenLog log;
  LogBytes bytes;
  LogContent content;                 // points into `bytes`
  std::vector<std::string> problems;  // what is wrong with a copy, though the other has it
  bool pending = false;               // a transaction at the end is left out: its writer may still be at work
  bool leftovers = false;             // there are files of other generations
};

// DataLoss that names the cure.
absl::Status CatalogIsMissing(absl::string_view path);

class CatalogFiles {
 public:
  CatalogFiles(std::string path, BlockIo* io) : path_(std::move(path)), io_(io) {}
  const std::string& path() const { return path_; }

  // The lock that a writer holds exclusively; released when the file is closed. With `wait` false null stands
  // for one that somebody else holds.
  absl::StatusOr<std::unique_ptr<BlockFile>> LockForWriting() const;
  // False: a writer is at work. True with `lock` null: nobody can write, there being no lock file.
  absl::StatusOr<bool> LockForReading(bool wait, std::unique_ptr<BlockFile>* lock) const;

  // Opens and reads the newest generation. `locked`: the caller holds the lock in either way, so what is
  // there does not change, and an undecided transaction counts (it is durable on return).
  absl::StatusOr<LoadedLog> Load(bool writable, bool locked) const;
  absl::StatusOr<LogBytes> ReadFrom(const OpenLog& log, uint64_t offset) const;
  bool HasNewer(const OpenLog& log) const;
  // Whether there is nothing behind log.end, by a look that does not rest on what is open since long.
  bool EndsThere(const OpenLog& log) const;
  absl::Status MakeWritable(OpenLog& log) const;

  // The rest is for the holder of the exclusive lock.

  // Makes the ends of both copies fit for Append, completing an undecided transaction.
  absl::Status Mend(LoadedLog& loaded) const;
  // Returns OK once the transaction is durable in both copies. `log.end` moves on. `into_reserve`: allowed to
  // use the space that is kept for transactions which free some. `*degraded`: only copy a has it for sure.
  absl::Status Append(OpenLog& log, absl::string_view payload, bool into_reserve, bool* degraded) const;
  // Writes a whole new log and removes the others. `transactions(sink)` gives the payloads. `*replaced` tells
  // after an error whether the new one may have taken the place of the old one.
  using Sink = std::function<void(absl::string_view payload)>;
  absl::StatusOr<OpenLog> WriteGeneration(uint64_t generation,
                                          const std::function<void(const Sink&)>& transactions,
                                          bool* replaced) const;
  // Syncs the folder, then removes what belongs to other generations.
  absl::Status RemoveOthers(uint64_t generation) const;
  // 0: there is none.
  absl::StatusOr<uint64_t> NewestGeneration() const;

 private:
  struct Listing {
    uint64_t newest = 0;
    std::vector<std::string> others;  // names that do not belong to it
  };
  std::string CopyPath(uint64_t generation, int copy) const;
  absl::StatusOr<Listing> List(uint64_t current) const;
  absl::StatusOr<LoadedLog> LoadGeneration(uint64_t generation, bool writable) const;
  // Unimplemented: nothing can be reserved there, or what is reserved may be gone when it is needed.
  absl::Status Reserve(OpenLog& log, uint64_t bytes) const;
  absl::Status CutBack(OpenLog& log, int copy) const;
  absl::Status WriteRecord(OpenLog& log, absl::string_view record, bool* degraded, bool* undone) const;
  // Where space can't be reserved: a file takes some, until a transaction that frees some needs it.
  absl::Status KeepBallast() const;
  bool DropBallast() const;  // whether there was one

  const std::string path_;
  BlockIo* const io_;
};

}  // namespace rekindle::store
