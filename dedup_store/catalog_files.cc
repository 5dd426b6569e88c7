#include "dedup_store/catalog_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "base/status.h"
#include "dedup_store/store.h"
#include "dedup_store/store_identity.h"

namespace rekindle::store {

namespace {

constexpr char kTemporarySuffix[] = ".tmp";
constexpr const char* kSuffixes[kLogCopies] = {".a", ".b"};
constexpr int kTries = 100;  // each one that fails means that somebody replaced the log meanwhile
constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kMostLogBytes = uint64_t{4} << 30;  // of a log with what millions of images take
constexpr char kBallast[] = "/ballast";
constexpr uint64_t kBallastBytes = 256 << 10;
// For how long a transaction waits for the room of the ballast, with all others behind it, and how often it
// looks: ZFS gives back what was removed with one of its next transaction groups, which end each five
// seconds. Elsewhere it is there at once, or somebody else has taken it.
constexpr absl::Duration kRoomComesBackLate = absl::Seconds(20), kRoomComesBack = absl::Seconds(2),
                         kRoomPause = absl::Milliseconds(250);
// Kept free behind the last record, so that images can be removed while the disk is full: a removal takes
// some 50 bytes, the dead frames of a pack a bit each. The more there is in a catalog, the more there is to
// remove.
uint64_t ReserveBytes(uint64_t log_end) { return std::clamp<uint64_t>(log_end, 64 << 10, 256 << 10); }
uint64_t LeastReserveBytes(uint64_t log_end) { return ReserveBytes(log_end) / 4 * 3; }

absl::Span<const std::byte> AsBytes(absl::string_view s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}

// 0: `name` is not one of a log.
uint64_t GenerationOf(absl::string_view name) {
  const auto digits = name.substr(0, 16);
  if (name.size() != 18 || (name.substr(16) != kSuffixes[0] && name.substr(16) != kSuffixes[1]) ||
      !std::all_of(digits.begin(), digits.end(), [](char c) { return absl::ascii_isxdigit(c); })) {
    return 0;
  }
  uint64_t generation = 0;
  return absl::SimpleHexAtoi(digits, &generation) ? generation : 0;
}

// A part that the disk refuses reads as zeros: the other copy may have it. So may all of one that nobody can
// have written.
absl::StatusOr<std::string> ReadCopy(const BlockFile& file, uint64_t offset, bool* unreadable) {
  RK_ASSIGN_OR_RETURN(uint64_t size, file.Size());
  if (size > kMostLogBytes) {
    *unreadable = true;
    return std::string();
  }
  std::string bytes(size > offset ? size - offset : 0, '\0');
  if (bytes.empty()) return bytes;
  auto piece = [&](uint64_t at, uint64_t length) {
    return file.ReadAt(offset + at, {reinterpret_cast<std::byte*>(&bytes[at]), length});
  };
  absl::Status status = piece(0, bytes.size());
  if (!absl::IsDataLoss(status)) {
    RK_RETURN_IF_ERROR(status);
    return bytes;
  }
  *unreadable = true;
  for (uint64_t at = 0; at < bytes.size();) {
    const uint64_t length = std::min<uint64_t>(kBlockBytes - (offset + at) % kBlockBytes, bytes.size() - at);
    status = piece(at, length);
    if (absl::IsDataLoss(status)) {
      std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(at), length, '\0');
    } else {
      RK_RETURN_IF_ERROR(status);
    }
    at += length;
  }
  return bytes;
}

absl::string_view Behind(const std::string& bytes, uint64_t at) {
  return absl::string_view(bytes).substr(std::min<uint64_t>(at, bytes.size()));
}

}  // namespace

absl::Status CatalogIsMissing(absl::string_view path) {
  const std::string store(path.substr(0, path.rfind('/')));
  // Nothing of it is there, which is no damage.
  if (!PathExists(FormatPath(store)) && !PathExists(absl::StrCat(store, "/packs"))) return StoreIsAway(store);
  return absl::DataLossError(
      absl::StrCat("the folder of the catalog, ", path,
                   ", is missing. `rekindle fsck --repair` makes a new one from the packs."));
}

std::string CatalogFiles::CopyPath(uint64_t generation, int copy) const {
  return absl::StrCat(path_, "/", absl::Hex(generation, absl::kZeroPad16), kSuffixes[copy]);
}

absl::StatusOr<CatalogFiles::Listing> CatalogFiles::List(uint64_t current) const {
  absl::StatusOr<std::vector<std::string>> listed = ListDirectory(path_);
  if (absl::IsNotFound(listed.status())) return CatalogIsMissing(path_);
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, std::move(listed));
  Listing listing;
  for (const std::string& name : names) listing.newest = std::max(listing.newest, GenerationOf(name));
  if (current == 0) current = listing.newest;
  for (std::string& name : names) {
    const uint64_t generation = GenerationOf(name);
    if ((generation != 0 && generation != current) || absl::EndsWith(name, kTemporarySuffix))
      listing.others.push_back(std::move(name));
  }
  return listing;
}

absl::StatusOr<uint64_t> CatalogFiles::NewestGeneration() const {
  RK_ASSIGN_OR_RETURN(Listing listing, List(0));
  return listing.newest;
}

bool CatalogFiles::HasNewer(const OpenLog& log) const {
  // The folder is opened anew, and tells what another node made: of a single name NFS may remember that there
  // was no such file.
  auto newest = NewestGeneration();
  return !newest.ok() || *newest > log.generation;
}

bool CatalogFiles::EndsThere(const OpenLog& log) const {
  // A file system that several nodes have shows at the opening of a file what was written before.
  auto file = io_->Open(CopyPath(log.generation, 0), false);
  if (!file.ok()) return false;
  auto size = (*file)->Size();
  return size.ok() && *size == log.end;
}

absl::StatusOr<std::unique_ptr<BlockFile>> CatalogFiles::LockForWriting() const {
  const std::string path = path_ + "/lock";
  auto file = io_->Open(path, true);
  if (absl::IsNotFound(file.status())) {
    file = io_->CreateBuffered(path);
    if (absl::IsAlreadyExists(file.status())) file = io_->Open(path, true);
    if (absl::IsNotFound(file.status())) return CatalogIsMissing(path_);
  }
  RK_RETURN_IF_ERROR(file.status());
  RK_RETURN_IF_ERROR((*file)->Lock(LockMode::kExclusive, true).status());
  return file;
}

absl::StatusOr<bool> CatalogFiles::LockForReading(bool wait, std::unique_ptr<BlockFile>* lock) const {
  auto file = io_->Open(path_ + "/lock", false);
  if (absl::IsNotFound(file.status())) return true;
  RK_RETURN_IF_ERROR(file.status());
  *lock = *std::move(file);
  return (*lock)->Lock(LockMode::kShared, wait);
}

absl::StatusOr<LogBytes> CatalogFiles::ReadFrom(const OpenLog& log, uint64_t offset) const {
  LogBytes bytes;
  // Copy b first: what it has was whole in a before.
  for (int copy = kLogCopies - 1; copy >= 0; --copy) {
    std::string read;
    if (log.copies[copy]) {
      RK_ASSIGN_OR_RETURN(read, ReadCopy(*log.copies[copy], offset, &bytes.unreadable[copy]));
    }
    bytes.copies[copy] = std::make_shared<const std::string>(std::move(read));
  }
  return bytes;
}

absl::StatusOr<LoadedLog> CatalogFiles::LoadGeneration(uint64_t generation, bool writable) const {
  LoadedLog loaded;
  loaded.log.generation = generation;
  loaded.log.writable = writable;
  for (int copy = kLogCopies - 1; copy >= 0; --copy) {
    auto file = io_->Open(CopyPath(generation, copy), writable);
    if (file.ok()) {
      loaded.log.copies[copy] = *std::move(file);
    } else if (!absl::IsNotFound(file.status())) {
      return file.status();
    }
  }
  RK_ASSIGN_OR_RETURN(loaded.bytes, ReadFrom(loaded.log, 0));
  const std::string& a = *loaded.bytes.copies[0];
  const std::string& b = *loaded.bytes.copies[1];
  auto lost = [&](const absl::Status& status) {
    return absl::DataLossError(absl::StrCat("the catalog ", CopyPath(generation, 0), " (and .b) is ",
                                            status.message(),
                                            ". `rekindle fsck --repair` makes a new one from the packs."));
  };
  bool bad_header[kLogCopies];
  auto header = FindLogHeader(a, b, bad_header);
  if (!header.ok()) return lost(header.status());
  if (header->generation != generation) return lost(absl::DataLossError("one of another generation"));
  loaded.log.nonce = header->nonce;
  auto content =
      ReadLogRecords(header->nonce, kLogHeaderBytes, Behind(a, kLogHeaderBytes), Behind(b, kLogHeaderBytes));
  if (!content.ok()) return lost(content.status());
  loaded.content = *std::move(content);

  for (int copy = 0; copy < kLogCopies; ++copy) {
    auto problem = [&](absl::string_view what) {
      loaded.problems.push_back(absl::StrCat("a copy of the catalog, ", CopyPath(generation, copy), ", is ",
                                             what, "; nothing is lost: the other copy has it"));
    };
    if (!loaded.log.copies[copy]) {
      problem("missing");
      continue;
    }
    if (loaded.bytes.unreadable[copy]) problem("refused in parts by the disk");
    if (bad_header[copy]) problem("damaged at offset 0");
    for (const LogDamage& damage : loaded.content.damage) {
      if (damage.copy == copy) problem(absl::StrCat("damaged at offset ", damage.offset));
    }
  }
  return loaded;
}

absl::StatusOr<LoadedLog> CatalogFiles::Load(bool writable, bool locked) const {
  for (int i = 0; i < kTries; ++i) {
    RK_ASSIGN_OR_RETURN(Listing listing, List(0));
    if (listing.newest == 0) {
      return absl::DataLossError(absl::StrCat(
          "the catalog ", path_, " has no log. `rekindle fsck --repair` makes a new one from the packs."));
    }
    auto loaded = LoadGeneration(listing.newest, writable);
    if (!loaded.ok() || !loaded->problems.empty()) {
      RK_ASSIGN_OR_RETURN(uint64_t newest, NewestGeneration());
      if (newest != listing.newest) continue;
    }
    RK_RETURN_IF_ERROR(loaded.status());
    LogContent& content = loaded->content;
    if (content.undecided && locked) RK_RETURN_IF_ERROR(loaded->log.copies[0]->Sync());
    if (content.undecided && !locked) {
      loaded->pending = true;
      content.end = content.records.back().offset;
      content.records.pop_back();
      content.undecided = false;
    }
    loaded->log.end = content.end;
    loaded->leftovers = !listing.others.empty();
    return loaded;
  }
  return absl::UnavailableError(absl::StrCat("the catalog ", path_, " changes faster than it can be read"));
}

absl::Status CatalogFiles::MakeWritable(OpenLog& log) const {
  if (log.writable) return absl::OkStatus();
  for (int copy = 0; copy < kLogCopies; ++copy) {
    RK_ASSIGN_OR_RETURN(log.copies[copy], io_->Open(CopyPath(log.generation, copy), true));
  }
  log.writable = true;
  return absl::OkStatus();
}

absl::Status CatalogFiles::Mend(LoadedLog& loaded) const {
  OpenLog& log = loaded.log;
  const LogContent& content = loaded.content;
  for (int copy = kLogCopies - 1; copy >= 0; --copy) {
    BlockFile& file = *log.copies[copy];
    const uint64_t size = loaded.bytes.copies[copy]->size();
    const bool complete = copy == 1 && content.undecided;
    if (complete) {
      const LogRecord& last = content.records.back();
      RK_RETURN_IF_ERROR(file.WriteAt(
          last.offset, AsBytes(absl::string_view(*loaded.bytes.copies[0]).substr(last.offset, last.bytes))));
    }
    if (size > log.end) RK_RETURN_IF_ERROR(file.Truncate(log.end));
    if (complete || size > log.end) RK_RETURN_IF_ERROR(file.Sync());
  }
  log.reserved = 0;
  return absl::OkStatus();
}

absl::Status CatalogFiles::Reserve(OpenLog& log, uint64_t bytes) const {
  if (!log.copies[0]->KeepsAllocated()) return absl::UnimplementedError("what is reserved is not kept");
  for (const auto& file : log.copies) RK_RETURN_IF_ERROR(file->Allocate(log.end, bytes));
  log.reserved = log.end + bytes;
  return absl::OkStatus();
}

absl::Status CatalogFiles::CutBack(OpenLog& log, int copy) const {
  log.reserved = 0;  // cutting gives back what was reserved
  absl::Status status = log.copies[copy]->Truncate(log.end);
  if (status.ok()) status = log.copies[copy]->Sync();
  return status;
}

absl::Status CatalogFiles::KeepBallast() const {
  const std::string path = path_ + kBallast;
  auto file = io_->Open(path, true);
  if (absl::IsNotFound(file.status())) file = io_->CreateBuffered(path);
  RK_RETURN_IF_ERROR(file.status());
  RK_ASSIGN_OR_RETURN(const uint64_t size, (*file)->Size());
  if (size == kBallastBytes) return absl::OkStatus();
  std::string bytes(kBallastBytes, '\0');
  FillWithRandomBytes(bytes.data(), bytes.size());  // which no file system makes smaller
  absl::Status status = (*file)->WriteAt(0, AsBytes(bytes));
  if (status.ok()) status = (*file)->Sync();
  if (!status.ok()) (void)io_->Unlink(path);
  return status;
}

bool CatalogFiles::DropBallast() const {
  const std::string path = path_ + kBallast;
  return io_->Open(path, false).ok() && io_->Unlink(path).ok();
}

absl::Status CatalogFiles::WriteRecord(OpenLog& log, absl::string_view record, bool* degraded,
                                       bool* undone) const {
  auto fail = [&](absl::Status status, int from_copy) {
    for (int copy = from_copy; copy >= 0; --copy) {
      absl::Status cut = CutBack(log, copy);
      if (cut.ok()) continue;
      return WithMessage(status, absl::StrCat(status.message(),
                                              "; it is not known whether the change of the catalog "
                                              "took effect, because undoing it failed too: ",
                                              cut.message()));
    }
    *undone = true;
    return status;
  };
  BlockFile& a = *log.copies[0];
  BlockFile& b = *log.copies[1];
  absl::Status status = a.WriteAt(log.end, AsBytes(record));
  if (status.ok()) status = a.Sync();
  if (!status.ok()) return fail(status, 0);
  status = b.WriteAt(log.end, AsBytes(record));
  if (!status.ok()) return fail(status, 1);
  // From here on others may have seen it, and copy a keeps it: there is no way back, and none is needed.
  log.end += record.size();
  if (status = b.Sync(); !status.ok()) {
    Log(LogLevel::kWarning, absl::StrCat(status.message(), "; only ", a.path(),
                                         " has the last change for sure. The next change makes new copies."));
    *degraded = true;
  }
  return absl::OkStatus();
}

absl::Status CatalogFiles::Append(OpenLog& log, absl::string_view payload, bool into_reserve,
                                  bool* degraded) const {
  *degraded = false;
  if (payload.size() > kMaxLogPayload) {
    return absl::ResourceExhaustedError(absl::StrCat("a change of ", payload.size(), " bytes to the catalog ",
                                                     path_, " is larger than one transaction may be"));
  }
  const std::string record = EncodeLogRecord(log.nonce, log.end, payload);
  if (log.reserved < log.end + record.size() + LeastReserveBytes(log.end)) {
    absl::Status status = Reserve(log, record.size() + ReserveBytes(log.end));
    if (absl::IsUnimplemented(status)) status = into_reserve ? absl::OkStatus() : KeepBallast();
    if (!status.ok() && !(into_reserve && absl::IsResourceExhausted(status))) return status;
  }
  bool undone = false;
  absl::Status status = WriteRecord(log, record, degraded, &undone);
  if (undone && into_reserve && absl::IsResourceExhausted(status) && DropBallast()) {
    for (const Deadline comes_back(log.copies[0]->GivesBackLate() ? kRoomComesBackLate : kRoomComesBack);;
         absl::SleepFor(kRoomPause)) {
      undone = false;
      status = WriteRecord(log, record, degraded, &undone);
      if (!undone || !absl::IsResourceExhausted(status) || comes_back.passed()) break;
    }
  }
  if (undone) (void)Reserve(log, ReserveBytes(log.end));
  return status;
}

absl::StatusOr<OpenLog> CatalogFiles::WriteGeneration(uint64_t generation,
                                                      const std::function<void(const Sink&)>& transactions,
                                                      bool* replaced) const {
  *replaced = false;
  LogHeader header;
  header.generation = generation;
  FillWithRandomBytes(&header.nonce, sizeof header.nonce);
  std::string bytes = header.Encode();
  transactions(
      [&](absl::string_view payload) { bytes += EncodeLogRecord(header.nonce, bytes.size(), payload); });

  auto temporary = [&](int copy) { return CopyPath(generation, copy) + kTemporarySuffix; };
  bool can_reserve = true;
  auto write = [&](int copy) -> absl::Status {
    RK_RETURN_IF_ERROR(io_->Unlink(temporary(copy)));
    RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, io_->CreateBuffered(temporary(copy)));
    RK_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(bytes)));
    absl::Status allocated = file->Allocate(bytes.size(), ReserveBytes(bytes.size()));
    can_reserve = !absl::IsUnimplemented(allocated) && file->KeepsAllocated();
    if (!absl::IsUnimplemented(allocated)) RK_RETURN_IF_ERROR(allocated);
    return file->Sync();
  };
  absl::Status status = write(0);
  if (status.ok()) status = write(1);
  if (!status.ok()) {
    for (int copy = 0; copy < kLogCopies; ++copy) (void)io_->Unlink(temporary(copy));
    return status;
  }
  *replaced = true;
  for (int copy = 0; copy < kLogCopies; ++copy) {
    RK_RETURN_IF_ERROR(io_->Rename(temporary(copy), CopyPath(generation, copy)));
  }
  RK_RETURN_IF_ERROR(RemoveOthers(generation));
  OpenLog log;
  log.generation = generation;
  log.nonce = header.nonce;
  log.end = bytes.size();
  if (can_reserve) log.reserved = log.end + ReserveBytes(log.end);
  RK_RETURN_IF_ERROR(MakeWritable(log));
  return log;
}

absl::Status CatalogFiles::RemoveOthers(uint64_t generation) const {
  RK_RETURN_IF_ERROR(io_->SyncDirectory(path_));
  RK_ASSIGN_OR_RETURN(Listing listing, List(generation));
  // Descending: copy b goes first, by whose absence others see that they must look for a newer log.
  std::sort(listing.others.rbegin(), listing.others.rend());
  for (const std::string& name : listing.others) RK_RETURN_IF_ERROR(io_->Unlink(path_ + "/" + name));
  return absl::OkStatus();
}

}  // namespace rekindle::store
