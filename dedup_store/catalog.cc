#include "dedup_store/catalog.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/catalog_files.h"
#include "dedup_store/catalog_state.h"

namespace rekindle::store {

namespace {

// A log that is shorter, or not so many times as long as what it says, is not worth being written anew.
constexpr uint64_t kLeastCompactedBytes = 256 << 10;
constexpr uint64_t kCompactionFactor = 4;
// A commit takes some syncs.
constexpr absl::Duration kWriterPause = absl::Milliseconds(1);

}  // namespace

struct Catalog::Txn::State {
  std::shared_ptr<const CatalogState> now;
  std::shared_ptr<CatalogState> own;  // the same as `now`, in a transaction that may change it
  Encoder changes;
  bool takes_space = false;  // adds what is of use only when more is written to the store
  uint64_t log_bytes = 0;

  absl::Status Change(CatalogChange kind, absl::string_view body) {
    if (own == nullptr) return absl::FailedPreconditionError("a transaction for reading changes nothing");
    RK_RETURN_IF_ERROR(own->Apply(kind, body));
    AppendChange(kind, body, changes);
    return absl::OkStatus();
  }
};

Catalog::Txn::Txn(std::unique_ptr<State> state) : state_(std::move(state)) {}
Catalog::Txn::Txn(Txn&& other) noexcept = default;
Catalog::Txn::~Txn() = default;

absl::StatusOr<std::vector<ImageRecord>> Catalog::Txn::Images() {
  std::vector<ImageRecord> records;
  records.reserve(state_->now->images().size());
  ForEachImage([&records](const ImageRecord& record) { records.push_back(record); });
  return records;
}

void Catalog::Txn::ForEachImage(const std::function<void(const ImageRecord&)>& each) {
  state_->now->images().Scan(0, [&](uint64_t, const CatalogState::Image& image) {
    each(*image.record);
    return true;
  });
}

absl::StatusOr<std::vector<ImageRecordPtr>> Catalog::Txn::ImagesAfter(uint64_t id) {
  std::vector<ImageRecordPtr> records;
  if (id == 0) records.reserve(state_->now->images().size());
  state_->now->images().Scan(id + 1, [&](uint64_t, const CatalogState::Image& image) {
    records.push_back(image.record);
    return true;
  });
  return records;
}

absl::StatusOr<std::optional<ImageRecord>> Catalog::Txn::FindImage(uint64_t id) {
  const CatalogState::Image* image = state_->now->images().Find(id);
  if (image == nullptr) return std::optional<ImageRecord>();
  return std::optional<ImageRecord>(*image->record);
}

absl::StatusOr<std::optional<ImageRecord>> Catalog::Txn::FindReference(absl::string_view reference) {
  const uint64_t* id = state_->now->references().Find(std::string(reference));
  if (id == nullptr) return std::optional<ImageRecord>();
  return FindImage(*id);
}

absl::StatusOr<std::vector<ImageRecord>> Catalog::Txn::WithReferencePrefix(absl::string_view prefix) {
  std::vector<ImageRecord> records;
  state_->now->references().Scan(std::string(prefix), [&](const std::string& reference, uint64_t id) {
    if (!absl::StartsWith(reference, prefix)) return false;
    records.push_back(*state_->now->images().Find(id)->record);
    return true;
  });
  return records;
}

absl::StatusOr<std::vector<ImageRecord>> Catalog::Txn::FindDigest(absl::string_view hex_prefix) {
  const std::string first = BytesOfHex(absl::StrCat(hex_prefix, hex_prefix.size() % 2 ? "0" : ""));
  std::vector<ImageRecord> records;
  state_->now->digests().Scan({first, 0}, [&](const CatalogState::DigestKey& key, char) {
    if (!absl::StartsWith(absl::BytesToHexString(key.first), hex_prefix)) return false;
    records.push_back(*state_->now->images().Find(key.second)->record);
    return true;
  });
  return records;
}

absl::StatusOr<uint64_t> Catalog::Txn::NextImageId() {
  const uint64_t id = state_->now->next_image_id();
  RK_RETURN_IF_ERROR(state_->Change(CatalogChange::kNextImageId, EncodeId(id + 1)));
  return id;
}

absl::Status Catalog::Txn::PutImage(const ImageRecord& record) {
  // One that only changes its name must go through on a full disk too.
  if (state_->now->images().Find(record.id) == nullptr) state_->takes_space = true;
  return state_->Change(CatalogChange::kPutImage, record.Encode());
}

absl::Status Catalog::Txn::DeleteImage(const ImageRecord& record) {
  return state_->Change(CatalogChange::kDeleteImage, EncodeId(record.id));
}

absl::StatusOr<std::vector<PackRecord>> Catalog::Txn::Packs() {
  std::vector<PackRecord> records;
  records.reserve(state_->now->packs().size());
  state_->now->packs().Scan(0, [&](uint64_t, const PackRecord& record) {
    records.push_back(record);
    return true;
  });
  return records;
}

absl::StatusOr<std::optional<PackRecord>> Catalog::Txn::FindPack(uint64_t id) {
  const PackRecord* record = state_->now->packs().Find(id);
  return record == nullptr ? std::optional<PackRecord>() : std::optional<PackRecord>(*record);
}

absl::Status Catalog::Txn::PutPack(const PackRecord& record) {
  if (state_->now->packs().Find(record.id) == nullptr) state_->takes_space = true;
  return state_->Change(CatalogChange::kPutPack, record.Encode());
}

absl::Status Catalog::Txn::DeletePack(uint64_t id) {
  return state_->Change(CatalogChange::kDeletePack, EncodeId(id));
}

absl::StatusOr<std::optional<DeadRecord>> Catalog::Txn::FindDead(uint64_t pack_id) {
  const CatalogState::Dead* dead = state_->now->dead().Find(pack_id);
  return dead == nullptr ? std::optional<DeadRecord>() : std::optional<DeadRecord>(*dead->record);
}

std::shared_ptr<const DeadRecord> Catalog::Txn::SharedDead(uint64_t pack_id) {
  const CatalogState::Dead* dead = state_->now->dead().Find(pack_id);
  return dead == nullptr ? nullptr : dead->record;
}

absl::Status Catalog::Txn::PutDead(uint64_t pack_id, const DeadRecord& record) {
  return state_->Change(CatalogChange::kPutDead, EncodeId(pack_id) + record.Encode());
}

absl::StatusOr<std::vector<IndexRecord>> Catalog::Txn::Indexes() {
  std::vector<IndexRecord> records;
  state_->now->indexes().Scan(0, [&](uint64_t, const IndexRecord& record) {
    records.push_back(record);
    return true;
  });
  return records;
}

absl::Status Catalog::Txn::PutIndex(const IndexRecord& record) {
  state_->takes_space = true;
  return state_->Change(CatalogChange::kPutIndex, record.Encode());
}

absl::Status Catalog::Txn::DeleteIndex(uint64_t id) {
  return state_->Change(CatalogChange::kDeleteIndex, EncodeId(id));
}

uint64_t Catalog::Txn::bytes_used() { return kLogCopies * state_->log_bytes; }

namespace {

absl::Status ReplayAll(const LogContent& content, CatalogState& state, const std::string& path) {
  for (const LogRecord& record : content.records) {
    if (absl::Status status = state.Replay(record.payload); !status.ok()) {
      return absl::DataLossError(absl::StrCat("the catalog ", path, " at offset ", record.offset, ": ",
                                              status.message(), ", though it is as it was written"));
    }
  }
  return absl::OkStatus();
}

// Locks are taken in this order: writer_mutex_, the lock file, mutex_. Waiting for the lock file with mutex_
// held would let a reader and a writer of this process wait for each other.
class LogCatalog : public Catalog {
 public:
  LogCatalog(const std::string& path, BlockIo* io) : files_(path, io) {}

  absl::StatusOr<Txn> Read() const override { return ReadAs(Freshness::kAny); }
  absl::StatusOr<Txn> ReadNow() const override { return ReadAs(Freshness::kNow); }

  absl::Status Update(const std::function<absl::Status(Txn&)>& change) override {
    absl::MutexLock one_writer(&writer_mutex_);
    RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file_lock, files_.LockForWriting());
    auto state = std::make_unique<Txn::State>();
    OpenLog log;
    {
      absl::MutexLock lock(&mutex_);
      RK_RETURN_IF_ERROR(Settle(false));
      writing_ = true;
      log = log_;
      state->own = std::make_shared<CatalogState>(*state_);
    }
    state->now = state->own;
    state->log_bytes = log.end;
    bool unsettled = false, degraded = false;
    std::shared_ptr<const CatalogState> result = state->own;
    absl::Status status = Commit(std::move(state), change, log, &unsettled, &degraded);
    const bool rewritten = status.ok() && CompactIfWorthwhile(*result, log, &unsettled);
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    unsettled_ = unsettled;
    degraded_ = !rewritten && (degraded || degraded_);
    damaged_ = !rewritten && damaged_;
    if (status.ok()) state_ = std::move(result);
    log_ = std::move(log);
    return status;
  }

  std::vector<std::string> Problems() const override {
    absl::MutexLock one_writer(&writer_mutex_);
    std::unique_ptr<BlockFile> file_lock;
    if (absl::Status status = files_.LockForReading(true, &file_lock).status(); !status.ok())
      return {std::string(status.message())};
    auto loaded = files_.Load(false, true);
    if (!loaded.ok()) return {std::string(loaded.status().message())};
    CatalogState state;
    if (absl::Status status = ReplayAll(loaded->content, state, files_.path()); !status.ok())
      loaded->problems.emplace_back(status.message());
    return std::move(loaded->problems);
  }

  absl::Status Heal() override {
    absl::MutexLock one_writer(&writer_mutex_);
    RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file_lock, files_.LockForWriting());
    absl::MutexLock lock(&mutex_);
    unsettled_ = true;
    return Settle(true);
  }

 private:
  enum class Sight {
    kCurrent,   // all that is there is known
    kPending,   // a writer is at work, or died at it
    kDoubtful,  // only reading everything can tell
  };
  enum class Freshness {
    kAny,     // as this node remembers the files
    kNow,     // as they are
    kLocked,  // as they are, and stay while the caller has the lock file locked
  };

  Txn Snapshot() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto state = std::make_unique<Txn::State>();
    state->now = state_;
    state->log_bytes = log_.end;
    return Txn(std::move(state));
  }

  absl::StatusOr<Txn> ReadAs(Freshness freshness) const {
    for (;; absl::SleepFor(kWriterPause)) {
      {
        absl::MutexLock lock(&mutex_);
        // Nobody else can commit while this process does.
        if (writing_) return Snapshot();
        RK_ASSIGN_OR_RETURN(bool certain, Look(freshness));
        if (certain) return Snapshot();
      }
      // Something looks damaged, or undecided. It may be that somebody was writing while we read. His lock is
      // not waited for: he may wait for that of a pack which our caller has.
      std::unique_ptr<BlockFile> file_lock;
      RK_ASSIGN_OR_RETURN(const bool idle, files_.LockForReading(false, &file_lock));
      if (!idle) continue;
      absl::MutexLock lock(&mutex_);
      if (!writing_) RK_RETURN_IF_ERROR(Look(Freshness::kLocked).status());
      return Snapshot();
    }
  }

  // Reads what was added since. False: look again with the lock.
  absl::StatusOr<bool> Look(Freshness freshness) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool locked = freshness == Freshness::kLocked;
    Sight sight = Sight::kDoubtful;
    if (state_ != nullptr) {
      RK_ASSIGN_OR_RETURN(sight, CatchUp(freshness));
    }
    if (sight == Sight::kDoubtful) {
      auto loaded = files_.Load(false, locked);
      if (!locked && (absl::IsDataLoss(loaded.status()) || (loaded.ok() && !loaded->problems.empty())))
        return false;
      RK_RETURN_IF_ERROR(loaded.status());
      RK_RETURN_IF_ERROR(Adopt(*loaded));
      sight = loaded->pending ? Sight::kPending : Sight::kCurrent;
    }
    if (sight != Sight::kPending || locked) return true;
    if (freshness == Freshness::kNow) return false;
    // Who died at writing left a transaction that one more look decides; who is at work will decide it.
    std::unique_ptr<BlockFile> file_lock;
    RK_ASSIGN_OR_RETURN(bool idle, files_.LockForReading(false, &file_lock));
    if (idle) RK_RETURN_IF_ERROR(Look(Freshness::kLocked).status());
    return true;
  }

  absl::Status Adopt(const LoadedLog& loaded) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto state = std::make_shared<CatalogState>();
    RK_RETURN_IF_ERROR(ReplayAll(loaded.content, *state, files_.path()));
    state_ = std::move(state);
    log_ = loaded.log;
    damaged_ = !loaded.problems.empty();
    // An empty log may have been made by somebody who died before its names were durable.
    unsettled_ = loaded.leftovers || loaded.content.records.size() <= 1;
    return absl::OkStatus();
  }

  absl::StatusOr<Sight> CatchUp(Freshness freshness) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool locked = freshness == Freshness::kLocked;
    const auto& [a, b] = log_.copies;
    if (!a || !b) return Sight::kDoubtful;
    if (freshness != Freshness::kAny) {
      RK_RETURN_IF_ERROR(b->Revalidate());
      RK_RETURN_IF_ERROR(a->Revalidate());
    }
    RK_ASSIGN_OR_RETURN(bool linked, b->IsLinked());
    RK_ASSIGN_OR_RETURN(uint64_t b_size, b->Size());
    RK_ASSIGN_OR_RETURN(uint64_t a_size, a->Size());
    if (!linked || a_size < log_.end || b_size < log_.end) return Sight::kDoubtful;
    if (a_size == log_.end && b_size == log_.end) return Sight::kCurrent;

    RK_ASSIGN_OR_RETURN(LogBytes bytes, files_.ReadFrom(log_, log_.end));
    auto content = ReadLogRecords(log_.nonce, log_.end, *bytes.copies[0], *bytes.copies[1]);
    if (!content.ok() || !content->damage.empty()) return Sight::kDoubtful;
    const bool undecided = content->undecided;
    if (undecided && locked) RK_RETURN_IF_ERROR(a->Sync());
    if (undecided && !locked) {
      content->end = content->records.back().offset;
      content->records.pop_back();
    }
    auto state = std::make_shared<CatalogState>(*state_);
    if (!ReplayAll(*content, *state, files_.path()).ok()) return Sight::kDoubtful;
    const uint64_t length = content->end - log_.end;
    state_ = std::move(state);
    log_.end = content->end;
    const bool all = length == bytes.copies[0]->size() && length == bytes.copies[1]->size();
    return all ? Sight::kCurrent : Sight::kPending;
  }

  // For a writer: knows all that is there, and leaves both copies whole and ending with the last record.
  // `strict`: a damaged copy that can't be replaced is an error even while the other one suffices.
  absl::Status Settle(bool strict) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (state_ != nullptr && !damaged_ && !degraded_ && !unsettled_) {
      auto sight = CatchUp(Freshness::kLocked);
      // An heir that was made but not yet used must not be passed by.
      if (sight.ok() && *sight == Sight::kCurrent && !files_.HasNewer(log_) && files_.EndsThere(log_))
        return files_.MakeWritable(log_);
    }
    absl::StatusOr<LoadedLog> read = files_.Load(true, true);
    if (absl::IsDataLoss(read.status()) && KnowsAll()) return WriteWhatIsKnown(read.status());
    RK_RETURN_IF_ERROR(read.status());
    LoadedLog loaded = *std::move(read);
    RK_RETURN_IF_ERROR(Adopt(loaded));
    if (unsettled_) RK_RETURN_IF_ERROR(files_.RemoveOthers(log_.generation));
    unsettled_ = true;  // until all of this is done
    if (damaged_ || degraded_) {
      bool replaced = false;
      auto log = Rewrite(*state_, log_.generation + 1, &replaced);
      if (log.ok()) {
        for (const std::string& problem : loaded.problems)
          Log(LogLevel::kWarning, absl::StrCat(problem, ". Both copies were written anew."));
        log_ = *std::move(log);
        damaged_ = degraded_ = unsettled_ = false;
        return absl::OkStatus();
      }
      if (strict || replaced || !log_.copies[0] || !log_.copies[1]) return log.status();
      Log(LogLevel::kWarning,
          absl::StrCat("a copy of the catalog could not be written anew: ", log.status().message()));
    }
    RK_RETURN_IF_ERROR(files_.Mend(loaded));
    log_ = loaded.log;
    unsettled_ = false;
    return absl::OkStatus();
  }

  // For a writer: whether all that was ever committed is in memory, whatever became of the files since.
  bool KnowsAll() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (state_ == nullptr || files_.HasNewer(log_)) return false;
    auto sight = CatchUp(Freshness::kLocked);
    return sight.ok() && *sight == Sight::kCurrent;
  }
  // Both copies are damaged at one place, which was whole when it was read.
  absl::Status WriteWhatIsKnown(const absl::Status& damage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    unsettled_ = true;
    bool replaced = false;
    RK_ASSIGN_OR_RETURN(log_, Rewrite(*state_, log_.generation + 1, &replaced));
    damaged_ = degraded_ = unsettled_ = false;
    Log(LogLevel::kWarning,
        absl::StrCat(damage.message(),
                     " This process had all of it in memory and has written both copies anew: "
                     "nothing is lost."));
    return absl::OkStatus();
  }

  absl::StatusOr<OpenLog> Rewrite(const CatalogState& state, uint64_t generation, bool* replaced) const {
    return files_.WriteGeneration(
        generation, [&](const CatalogFiles::Sink& sink) { state.Describe(sink); }, replaced);
  }

  absl::Status Commit(std::unique_ptr<Txn::State> state, const std::function<absl::Status(Txn&)>& change,
                      OpenLog& log, bool* unsettled, bool* degraded) const {
    Txn::State* raw = state.get();
    Txn txn(std::move(state));
    RK_RETURN_IF_ERROR(change(txn));
    if (raw->changes.out().empty()) return absl::OkStatus();
    absl::Status status = files_.Append(log, raw->changes.out(), !raw->takes_space, degraded);
    *unsettled = !status.ok();
    return status;
  }

  // Whether it was.
  bool CompactIfWorthwhile(const CatalogState& state, OpenLog& log, bool* unsettled)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer_mutex_) {
    if (log.end < kLeastCompactedBytes || log.end < kCompactionFactor * state.described_bytes() ||
        log.end < compact_from_) {
      return false;
    }
    bool replaced = false;
    auto compacted = Rewrite(state, log.generation + 1, &replaced);
    if (compacted.ok()) {
      log = *std::move(compacted);
      compact_from_ = 0;
      return true;
    }
    *unsettled |= replaced;
    compact_from_ = 2 * log.end;  // a full disk should not cost an attempt at each commit
    Log(LogLevel::kWarning, absl::StrCat("the catalog was not written anew, which only costs space: ",
                                         compacted.status().message()));
    return false;
  }

  const CatalogFiles files_;
  mutable absl::Mutex writer_mutex_;
  mutable absl::Mutex mutex_;
  mutable std::shared_ptr<const CatalogState> state_ ABSL_GUARDED_BY(mutex_);
  mutable OpenLog log_ ABSL_GUARDED_BY(mutex_);
  mutable bool damaged_ ABSL_GUARDED_BY(mutex_) = false;  // a copy lacks what the other one has
  // The files may not be as they should, or not as we think.
  mutable bool unsettled_ ABSL_GUARDED_BY(mutex_) = false;
  bool degraded_ ABSL_GUARDED_BY(mutex_) = false;  // copy b may lack the end on disk
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t compact_from_ ABSL_GUARDED_BY(writer_mutex_) = 0;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Catalog>> Catalog::Open(const std::string& path, BlockIo* io) {
  static absl::Mutex mutex(absl::kConstInit);
  static auto* const opened = new std::map<std::tuple<BlockIo*, dev_t, ino_t>, std::weak_ptr<Catalog>>;
  struct stat st;
  if (stat(path.c_str(), &st) != 0) {
    if (errno != ENOENT) return ErrnoStatus(errno, absl::StrCat("opening ", path));
    return CatalogIsMissing(path);
  }
  std::shared_ptr<Catalog> catalog;
  {
    absl::MutexLock lock(&mutex);
    std::weak_ptr<Catalog>& known = (*opened)[{io, st.st_dev, st.st_ino}];
    catalog = known.lock();
    if (catalog == nullptr) {
      catalog = std::make_shared<LogCatalog>(path, io);
      known = catalog;
    }
  }
  RK_RETURN_IF_ERROR(catalog->Read().status());
  return catalog;
}

absl::Status Catalog::Create(const std::string& path, BlockIo* io) {
  const CatalogFiles files(path, io);
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> lock, files.LockForWriting());
  RK_ASSIGN_OR_RETURN(uint64_t generation, files.NewestGeneration());
  if (generation != 0) {
    // Perhaps somebody died while making it.
    lock.reset();
    return LogCatalog(path, io).Heal();
  }
  const CatalogState empty;
  bool replaced = false;
  return files
      .WriteGeneration(
          1, [&](const CatalogFiles::Sink& sink) { empty.Describe(sink); }, &replaced)
      .status();
}

absl::StatusOr<bool> Catalog::Rebuild(const std::string& path, BlockIo* io,
                                      const std::function<absl::StatusOr<Found>()>& find) {
  RK_RETURN_IF_ERROR(MakeDirectories(path, 0700));
  const CatalogFiles files(path, io);
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> lock, files.LockForWriting());
  absl::StatusOr<LoadedLog> loaded = files.Load(/*writable=*/false, /*locked=*/true);
  CatalogState there;
  const absl::Status readable =
      loaded.ok() ? ReplayAll(loaded->content, there, files.path()) : loaded.status();
  if (readable.ok()) return false;
  if (!absl::IsDataLoss(readable)) return readable;

  RK_ASSIGN_OR_RETURN(const Found found, find());
  CatalogState state;
  for (const PackRecord& pack : found.packs)
    RK_RETURN_IF_ERROR(state.Apply(CatalogChange::kPutPack, pack.Encode()));
  uint64_t next = 1;
  for (const ImageRecord& image : found.images) next = std::max(next, image.id + 1);
  for (ImageRecord image : found.images) {
    if (image.id == 0) image.id = next++;
    RK_RETURN_IF_ERROR(state.Apply(CatalogChange::kPutImage, image.Encode()));
  }
  RK_RETURN_IF_ERROR(state.Apply(CatalogChange::kNextImageId, EncodeId(next)));
  RK_ASSIGN_OR_RETURN(uint64_t generation, files.NewestGeneration());
  bool replaced = false;
  RK_RETURN_IF_ERROR(
      files
          .WriteGeneration(
              generation + 1, [&](const CatalogFiles::Sink& sink) { state.Describe(sink); }, &replaced)
          .status());
  return true;
}

}  // namespace rekindle::store
